//! RISC-V files: hand-written functions that the planner must distinguish, and programs as gcc builds them. They are
//! only read, so this runs on any machine with a RISC-V compiler.

mod riscv;

use hodo_abi::Isa;
use hodo_isa::riscv64::Riscv64;
use hodo_isa::{InstructionSet, Via};
use hodo_plan::model::{
    EntryOnlyReason, Extra, LibcallForm, Mode, Pad, Plan, PlannedFunction, SitePlan, Tactic, Wanted,
};
use hodo_plan::{PlanOptions, Survey, plan, plan_probes};
use riscv::{COMPILER, compile, compile_with, libraries, static_programs_of, symbol};

const T0: u32 = 1 << 5;
const A0: u32 = 1 << 10;
const A5: u32 = 1 << 15;
/// `t0`–`t6` except `t2`, which is an argument of nested functions.
const TEMPORARIES: u32 = 0xF000_0060;

fn function<'p>(plan: &'p Plan, name: &str) -> &'p PlannedFunction {
    let mut functions = plan.functions.iter().filter(|f| f.name == name);
    functions.next().unwrap_or_else(|| panic!("no {name}"))
}

fn site<'p>(plan: &'p Plan, name: &str) -> &'p SitePlan {
    match &function(plan, name).outcome {
        Ok(site) => site,
        Err(reason) => panic!("{name}: {reason}"),
    }
}

/// The hand-written program.
fn program() -> Option<(Vec<u8>, Plan)> {
    let path = compile("hand", "riscv64.s", &[])?;
    let bytes = std::fs::read(&path).expect("a program");
    let plan = plan(&path, &bytes, &PlanOptions::default()).expect("a plan");
    Some((bytes, plan))
}

#[test]
fn every_function_is_traced_without_a_breakpoint() {
    let Some((_, plan)) = program() else { return };
    for function in &plan.functions {
        match &function.outcome {
            Ok(site) => assert_ne!(site.tactic, Tactic::Trap, "{}", function.name),
            Err(reason) => panic!("{}: {reason}", function.name),
        }
    }
}

#[test]
fn modes_follow_from_the_use_of_the_link_register() {
    let Some((_, plan)) = program() else { return };
    let only = |name: &str| match site(&plan, name).mode {
        Mode::EntryOnly(reason) => Some(reason),
        Mode::Call => None,
    };
    assert_eq!(only("frame"), None);
    assert_eq!(only("saved"), None);
    assert_eq!(only("stops"), None);
    assert_eq!(only("arguments"), None);
    assert_eq!(only("spilled"), None);
    assert_eq!((only("untold"), only("spilled_deep")), (None, None));
    assert_eq!(only("floating"), None);
    assert_eq!(only("save"), Some(EntryOnlyReason::OtherLink));
    assert_eq!(only("who"), Some(EntryOnlyReason::ReadsReturnAddress));
    let looks = Some(EntryOnlyReason::ReadsReturnAddress);
    for name in ["asks", "asks_untold", "asks_deep", "shows_slot"] {
        assert_eq!(only(name), looks, "{name}");
    }
    assert_eq!(only("shows_other"), None);
    let hands_on = Some(EntryOnlyReason::HandsReturnAddressOn);
    assert_eq!(only("hands_on"), hands_on);
    assert_eq!(only("elsewhere"), Some(EntryOnlyReason::MovesReturnAddress));
    assert_eq!(only("resolver"), Some(EntryOnlyReason::NotCalled));
    assert_eq!(only("by_pointer"), None);
    assert_eq!(only("_start"), Some(EntryOnlyReason::NotCalled));
}

#[test]
fn registers_without_expected_values_are_free() {
    let Some((_, plan)) = program() else { return };
    let free = |name: &str| (site(&plan, name).free, site(&plan, name).free_after);
    // What it calls is unknown: all temporaries, and arguments that it does not read.
    let (before, after) = free("frame");
    assert_eq!(before & TEMPORARIES, TEMPORARIES);
    assert_eq!(before & A0, 0);
    assert_eq!(after & TEMPORARIES, TEMPORARIES);
    assert_eq!(after & A0, 0, "its result");
    // It leaves everything unchanged.
    assert_eq!(free("nothing"), (0, 0));
    assert_eq!(free("getter"), (0, 0));
    // The result is written before it is read.
    assert_eq!(free("constant"), (A0, 0));
    assert_eq!(free("loop"), (A5, A5));
    // What is read is in use, and only the result is overwritten.
    assert_eq!(free("reads_all"), (0, 0));
    // Functions that call each other are analyzed together.
    let t3 = 1 << 28;
    assert_eq!(free("circle").0 & (t3 | T0), t3);
    assert_eq!(free("circle_back").0 & (t3 | T0), t3);
}

#[test]
fn jumps_take_free_registers_or_keep_one() {
    let Some((_, plan)) = program() else { return };
    let constant = site(&plan, "constant");
    assert_eq!(
        (constant.tactic, constant.via, constant.patch_len),
        (Tactic::Jump, Via::Free(10), 8)
    );
    // No register is free at its return, so the return is displaced, too.
    assert_eq!(constant.spare.back, Via::Nothing);
    assert_eq!(constant.displaced.end, constant.patch + 10);
    // One is free once the frame has been made.
    let frame = site(&plan, "frame");
    assert!(matches!(frame.spare.back, Via::Free(_)), "{frame:x?}");
    // A block: its loop must stay inside.
    let looping = site(&plan, "loop");
    assert_eq!(looping.tactic, Tactic::Block);
    assert!(looping.displaced.end >= looping.patch + 8, "{looping:x?}");
    // Too short for a jump: it hops to spare bytes of another function, and saves a register, because none is free.
    let getter = site(&plan, "getter");
    assert_eq!(getter.tactic, Tactic::Hop);
    assert!(matches!(getter.via, Via::Kept(_)), "{getter:x?}");
    assert_eq!(getter.patch_len, 4);
    // This function has two bytes.
    let nothing = site(&plan, "nothing");
    assert!(
        nothing.patch_len == 4 || nothing.patch_len == 2,
        "{nothing:x?}"
    );
    for name in ["getter", "nothing"] {
        let Extra::HopDonor { slot, host } = site(&plan, name).extra else {
            // Functions nearby may have no room left.
            assert_eq!(site(&plan, name).extra, Extra::Near, "{name}");
            continue;
        };
        let host = plan.functions.iter().find(|f| f.addr == host);
        let host = host.and_then(|f| f.outcome.as_ref().ok()).expect("a site");
        let after = host.patch + u64::from(host.patch_len);
        let end = slot + Riscv64.jump(site(&plan, name).via).len;
        assert!(after <= slot && end <= host.displaced.end, "{name}");
    }
}

#[test]
fn no_patch_covers_targets_of_distance_tables() {
    let Some((_, plan)) = program() else { return };
    let site = site(&plan, "distances");
    assert_eq!((site.tactic, site.patch_len), (Tactic::Hop, 4), "{site:x?}");
}

#[test]
fn nothing_runs_into_code_that_restores_a_register() {
    let Some((_, plan)) = program() else { return };
    let site = site(&plan, "loops_later");
    assert!(matches!(site.via, Via::Kept(_)), "{site:x?}");
    assert!(matches!(site.spare.back, Via::Kept(_)), "{site:x?}");
    // The loop begins 12 bytes after the start, and has ten bytes: either it stays, or all of it is moved.
    let start = site.displaced.start;
    let end = site.displaced.end;
    assert!(end <= start + 12 || end == start + 22, "{site:x?}");
}

#[test]
fn library_calls_are_seen_at_the_plt() {
    let Some((_, plan)) = program() else { return };
    let puts = plan.libcalls.iter().find(|call| call.name == "puts");
    let puts = puts.expect("puts");
    assert_eq!((puts.form, puts.patch_len), (LibcallForm::Plt, 12));
    assert_eq!(puts.mode, Mode::Call);
}

#[test]
fn sequences_are_moved_as_a_whole_and_probed_at_their_first_instruction() {
    let Some((bytes, _)) = program() else { return };
    let lr = symbol(&bytes, "swap_lr");
    let places: Vec<u64> = vec![lr, lr + 4, lr + 8, lr + 12];
    let plan = plan_probes("hand".as_ref(), &bytes, Wanted::At(&places), 1).expect("a plan");
    let refused: Vec<u64> = plan.refused.iter().map(|refused| refused.addr).collect();
    assert_eq!(refused, [lr + 4, lr + 8], "{:?}", plan.refused);
    for refused in &plan.refused {
        assert_eq!(
            refused.reason,
            "it is in a sequence that depends on a memory reservation, which a probe may end"
        );
    }
    for site in &plan.sites {
        let inside = |addr: u64| site.displaced.contains(&addr);
        assert!(!inside(lr) || inside(lr + 11), "{site:x?}");
        assert!(!(lr + 4..lr + 12).contains(&site.displaced.start));
    }
    let mut probes = plan.sites.iter().flat_map(|site| &site.probes);
    assert!(probes.any(|probe| probe.addr == lr));
}

#[test]
fn system_calls_are_probed() {
    let Some((bytes, _)) = program() else { return };
    let ecall = symbol(&bytes, "system") + 4;
    let plan = plan_probes("hand".as_ref(), &bytes, Wanted::At(&[ecall]), 1).expect("a plan");
    assert!(plan.refused.is_empty(), "{:?}", plan.refused);
}

#[test]
fn targets_of_jump_tables_begin_regions() {
    let Some((bytes, _)) = program() else { return };
    let plan = plan_probes("hand".as_ref(), &bytes, Wanted::Every, 1).expect("a plan");
    for name in ["table_1", "table_2"] {
        let addr = symbol(&bytes, name);
        let site = plan
            .sites
            .iter()
            .find(|site| site.displaced.contains(&addr));
        assert_eq!(site.expect(name).patch, addr, "{name}");
    }
}

#[test]
fn other_machines_are_refused_by_name() {
    // The header of a file for 64-bit PowerPC.
    let mut bytes = vec![0u8; 64];
    bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    bytes[16] = 2;
    bytes[18] = 21;
    bytes[20] = 1;
    bytes[52] = 64;
    let error = plan("ppc64".as_ref(), &bytes, &PlanOptions::default());
    let error = error.expect_err("no instruction set that is known");
    assert_eq!(
        error.to_string(),
        "not an image for x86-64, RISC-V with 64 bits or AArch64"
    );
    assert_eq!(Isa::of_elf(21), None);
}

/// Options, and what they do to the functions.
#[test]
fn compilers_leave_room_for_tracers() {
    let cases: [(&str, &[&str], bool); 6] = [
        ("plain", &[], false),
        ("nops4", &["-fpatchable-function-entry=4"], true),
        ("nops8", &["-fpatchable-function-entry=8"], true),
        ("before", &["-fpatchable-function-entry=8,4"], true),
        ("profiled", &["-pg"], true),
        (
            "norelax",
            &["-mno-relax", "-fpatchable-function-entry=8"],
            true,
        ),
    ];
    for (name, flags, has_sites) in cases {
        let Some(file) = compile(name, "functions.c", flags) else {
            return;
        };
        let bytes = std::fs::read(&file).expect("a program");
        let plan = plan(&file, &bytes, &PlanOptions::default()).expect("a plan");
        for function in [
            "empty", "leaf", "branches", "tail", "loop", "caller", "main",
        ] {
            let site = site(&plan, function);
            let mode = match function {
                "caller" => Mode::EntryOnly(EntryOnlyReason::ReadsReturnAddress),
                _ => Mode::Call,
            };
            assert_eq!(site.mode, mode, "{name}: {function}");
            // Here, no table of the profiled places is made.
            if has_sites && name != "profiled" {
                assert_eq!(site.tactic, Tactic::Site, "{name}: {function}");
                // No caller keeps anything in a register that the convention lets callees overwrite.
                assert!(matches!(site.via, Via::Free(_)), "{name}: {function}");
                assert_eq!(site.patch_len, 8, "{name}: {function}");
                assert_eq!(site.free & TEMPORARIES, TEMPORARIES, "{name}: {function}");
            }
        }
        assert_eq!(name == "profiled", !plan.nops.is_empty(), "{name}");
        assert!(plan.libcalls.iter().any(|call| call.name == "puts"));
        assert!(!plan.libcalls.iter().any(|call| call.name == "_mcount"));
    }
}

#[test]
fn static_programs_lose_calls_of_the_c_librarys_mcount_only() {
    static_programs_of(COMPILER);
}

#[test]
fn code_shared_by_functions_is_no_function() {
    // With the name that Clang gives to code that it outlines.
    let outlined = "-Dleaf=OUTLINED_FUNCTION_0";
    let flags = ["-Os", "-msave-restore", "-fno-inline", outlined];
    let Some(file) = compile("helpers", "functions.c", &flags) else {
        return;
    };
    let bytes = std::fs::read(&file).expect("a program");
    let plan = plan(&file, &bytes, &PlanOptions::default()).expect("a plan");
    let named = |part: &str| {
        let all = plan.functions.iter();
        all.filter(|function| function.name.starts_with(part))
            .collect::<Vec<_>>()
    };
    for part in ["__riscv_save_", "__riscv_restore_", "OUTLINED_"] {
        assert!(!named(part).is_empty(), "{part}");
        for helper in named(part) {
            let reason = helper.outcome.as_ref().expect_err(&helper.name);
            assert!(
                reason
                    .as_str()
                    .contains("a part of the functions that use it"),
                "{reason}"
            );
        }
    }
    // The functions that use them are traced as usual.
    assert_eq!(site(&plan, "branches").mode, Mode::Call);
}

#[test]
fn tables_of_all_code_models_are_found() {
    for flags in [
        &["-fpic", "-pie"][..],
        &["-fno-pic", "-no-pie"],
        &["-fno-pic", "-no-pie", "-mcmodel=medany"],
        &["-fno-pic", "-no-pie", "-O0"],
        &["-static"],
    ] {
        let name = format!("tables{}", flags.concat());
        let Some(file) = compile(&name, "functions.c", flags) else {
            return;
        };
        let bytes = std::fs::read(&file).expect("a program");
        let function = symbol(&bytes, "branches");
        let plan = plan_probes(&file, &bytes, Wanted::Every, 1).expect("a plan");
        // If the table was found, all of it is reached.
        let near = function..function + 60;
        let refused = plan
            .refused
            .iter()
            .find(|refused| near.contains(&refused.addr));
        assert_eq!(refused, None, "{flags:?}");
    }
}

#[test]
fn library_calls_are_seen_where_addresses_are_loaded_from_slots() {
    let flags = ["-fPIE", "-pie", "-fno-builtin", "-mno-plt"];
    let Some(path) = compile("slots", "slots.c", &flags) else {
        return;
    };
    let bytes = std::fs::read(&path).expect("a program");
    let plan = plan(&path, &bytes, &PlanOptions::default()).expect("a plan");
    let in_function = |name: &str| {
        let start = symbol(&bytes, name);
        let function = function(&plan, name);
        let calls = plan.libcalls.iter();
        let calls = calls.filter(move |call| (start..start + function.size).contains(&call.patch));
        let mut calls: Vec<_> = calls.map(|call| call.name.clone()).collect();
        calls.sort_unstable();
        calls
    };
    // The one in the loop goes through a callee-saved register, which is loaded before the loop.
    assert_eq!(in_function("calls"), ["strlen"]);
    assert_eq!(in_function("jumps"), ["strdup"]);
    assert_eq!(in_function("picks"), [""; 0]);
    assert_eq!(in_function("by_pointer"), [""; 0]);
    for call in &plan.libcalls {
        let LibcallForm::Loaded { register, end } = call.form else {
            assert_eq!(call.form, LibcallForm::Plt, "{call:x?}");
            continue;
        };
        assert_eq!((call.patch_len, call.mode), (8, Mode::Call), "{call:x?}");
        assert!(
            (call.patch + 10..=call.patch + 48).contains(&end),
            "{call:x?}"
        );
        assert_eq!(register, 6, "{call:x?}");
    }
}

#[test]
fn small_functions_that_jump_to_each_other_are_traced() {
    let Some(path) = compile("small", "small.c", &[]) else {
        return;
    };
    let bytes = std::fs::read(&path).expect("a program");
    let plan = plan(&path, &bytes, &PlanOptions::default()).expect("a plan");
    // No register is free anywhere in these: their callers may have values in all registers that the functions do not
    // use.
    for name in ["even", "odd"] {
        let site = site(&plan, name);
        assert!(matches!(site.spare.back, Via::Kept(_)), "{name}: {site:x?}");
        let taken = site.displaced.end - Via::TAKE;
        assert!(
            site.patch + u64::from(site.patch_len) <= taken,
            "{name}: {site:x?}"
        );
    }
    let tactic = |name: &str| site(&plan, name).tactic;
    assert_eq!(
        (tactic("even"), tactic("calls")),
        (Tactic::Hop, Tactic::Jump)
    );
    assert_ne!(tactic("same"), Tactic::Trap);
    // Single probes do not need a breakpoint either where there is room for a short jump.
    let entries = ["even", "odd"].map(|name| symbol(&bytes, name));
    let probes = plan_probes(&path, &bytes, Wanted::At(&entries), 1).expect("a plan");
    let tactics: Vec<Tactic> = probes.sites.iter().map(|site| site.tactic).collect();
    assert_eq!(tactics, [Tactic::Hop, Tactic::Hop], "{:x?}", probes.sites);
}

#[test]
fn code_without_a_free_register_is_left_through_pads() {
    let flags = ["-shared", "-nostdlib"];
    let Some(path) = compile("pads", "pads.s", &flags) else {
        return;
    };
    let bytes = std::fs::read(&path).expect("a library");
    let plan = plan(&path, &bytes, &PlanOptions::default()).expect("a plan");
    let takes = symbol(&bytes, "takes");
    let pad = |from: u64, to: u64| {
        let at = None;
        vec![Pad { from, at, to }]
    };
    // All of it runs in the stub, and its jump leads to memory near its target.
    let passes = site(&plan, "passes");
    assert_eq!((passes.tactic, &passes.extra), (Tactic::Hop, &Extra::Near));
    assert_eq!(passes.displaced, passes.patch..passes.patch + 4);
    assert_eq!(passes.spare.pads, pad(passes.patch + 2, takes));
    assert_eq!(passes.spare.back, Via::Nothing);
    let leaps = site(&plan, "leaps");
    assert_eq!((leaps.tactic, leaps.patch_len), (Tactic::Trap, 2));
    assert_eq!(leaps.spare.pads, pad(leaps.patch, takes));
    // Control continues in the function that follows it.
    let falls = site(&plan, "falls");
    assert_eq!((falls.tactic, falls.patch_len), (Tactic::Trap, 2));
    assert_eq!(falls.displaced, falls.patch..takes);
    assert_eq!(falls.spare.pads, pad(takes, takes));
    assert!(matches!(falls.spare.back, Via::Kept(_)), "{falls:x?}");
}

#[test]
fn labels_without_a_name_lead_nowhere() {
    // LLVM emits one wherever a frame table has a new row.
    let flags = [
        "--target=riscv64-linux-gnu",
        "-march=rv64gc",
        "-mabi=lp64d",
        "-fasynchronous-unwind-tables",
    ];
    let Some(path) = compile_with("clang", "labels", "functions.c", &flags) else {
        return;
    };
    let bytes = std::fs::read(&path).expect("a program");
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let nameless = object::Object::symbols(&file);
    let nameless = nameless.filter(|symbol| object::ObjectSymbol::name(symbol) == Ok(""));
    assert!(nameless.count() > 10, "this compiler leaves none");
    let plan = plan(&path, &bytes, &PlanOptions::default()).expect("a plan");
    for function in &plan.functions {
        let site = function.outcome.as_ref();
        let site = site.unwrap_or_else(|error| panic!("{}: {error}", function.name));
        assert_ne!(site.tactic, Tactic::Trap, "{}", function.name);
    }
}

#[test]
fn large_functions_are_planned_quickly() {
    let flags = ["-shared", "-nostdlib"];
    let Some(path) = compile("many", "many.s", &flags) else {
        return;
    };
    let bytes = std::fs::read(&path).expect("a library");
    // It takes one second here, and used to take minutes.
    let plan = plan(&path, &bytes, &PlanOptions::default()).expect("a plan");
    assert_eq!(plan.libcalls.len(), 20_000);
    // Any instruction of it may lead to any other.
    assert_eq!(site(&plan, "places").patch_len, 4);
}

#[test]
fn probes_without_jumps_are_breakpoints_at_the_same_places() {
    for path in libraries() {
        let bytes = std::fs::read(&path).expect("a library");
        let survey = Survey::new(&path, &bytes, 0).expect("a survey");
        let probed = |breakpoints| {
            let options = PlanOptions {
                breakpoints,
                ..PlanOptions::default()
            };
            let mut sites = survey.plan_probes(Wanted::Every, &options).sites;
            sites.sort_by_key(|site| site.patch);
            let probes = sites.iter().flat_map(|site| &site.probes);
            let mut places: Vec<u64> = probes.map(|probe| probe.addr).collect();
            places.sort_unstable();
            (sites, places)
        };
        let (jumps, places) = probed(false);
        let (traps, same) = probed(true);
        assert!(jumps.iter().any(|site| site.tactic == Tactic::Jump));
        assert_eq!(places, same, "{}", path.display());
        for site in &traps {
            assert_eq!((site.tactic, site.via), (Tactic::Trap, Via::Nothing));
            assert_eq!(site.patch, site.displaced.start);
        }
        // No breakpoint, and no jump through which a copy is left, is in the bytes of another.
        let own = |site: &hodo_plan::model::ProbeSite| {
            let end = site.patch + u64::from(site.patch_len);
            let pads = site.spare.pads.iter().filter_map(|pad| pad.at);
            let pads: Vec<_> = pads.map(|at| at..at + Via::PAD).collect();
            std::iter::once(site.patch..end).chain(pads)
        };
        let mut written: Vec<_> = traps.iter().flat_map(own).collect();
        written.sort_by_key(|range| range.start);
        for pair in written.windows(2) {
            assert!(
                pair[0].end <= pair[1].start,
                "{pair:x?} in {}",
                path.display()
            );
        }
    }
}
