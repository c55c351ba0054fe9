//! RISC-V functions in which compilers left room for tracers (`-fpatchable-function-entry`), and how the planner uses
//! it: for an eight-byte jump through a free register, or a twelve-byte jump that saves a register on the stack.

mod riscv;

use hodo_isa::Via;
use hodo_plan::model::{EntryOnlyReason, Mode, Plan, SitePlan, Tactic};
use hodo_plan::{PlanOptions, plan};
use riscv::compile;

/// `t0`–`t6` except `t2`, which is an argument of nested functions.
const TEMPORARIES: u32 = 0xF000_0060;

fn of(name: &str, source: &str, flags: &[&str]) -> Option<Plan> {
    let path = compile(name, source, flags)?;
    let bytes = std::fs::read(&path).expect("a program");
    Some(plan(&path, &bytes, &PlanOptions::default()).expect("a plan"))
}

fn site<'p>(plan: &'p Plan, name: &str) -> &'p SitePlan {
    let function = plan.functions.iter().find(|f| f.name == name);
    match &function.unwrap_or_else(|| panic!("no {name}")).outcome {
        Ok(site) => site,
        Err(reason) => panic!("{name}: {reason}"),
    }
}

/// The register of an eight-byte jump.
fn free(site: &SitePlan) -> u32 {
    match site.via {
        Via::Free(register) if site.patch_len == 8 => 1 << register,
        _ => panic!("{site:x?}"),
    }
}

#[test]
fn the_convention_holds_where_no_caller_expects_more() {
    let Some(plan) = of("patchable", "patchable.s", &[]) else {
        return;
    };
    for name in ["eight", "sixteen", "tiny", "saved"] {
        let site = site(&plan, name);
        assert_eq!(site.tactic, Tactic::Site, "{name}");
        assert_ne!(free(site) & TEMPORARIES, 0, "{name}");
        // Stubs have them, too.
        assert_eq!(site.free & TEMPORARIES, TEMPORARIES, "{name}");
        assert_eq!(site.free_after & TEMPORARIES, TEMPORARIES, "{name}");
        // Only nops are moved.
        assert_eq!(site.displaced, site.patch..site.patch + 8, "{name}");
        assert_eq!(site.mode, Mode::Call, "{name}");
    }
}

#[test]
fn registers_that_callers_expect_are_kept() {
    let Some(plan) = of("patchable-expects", "patchable.s", &[]) else {
        return;
    };
    let (t1, t3, t4, t6) = (1 << 6, 1 << 28, 1 << 29, 1 << 31);
    for (name, expected) in [
        ("expects_two", t1 | t6),
        ("expects_by_jump", t3),
        ("expects_by_table", t4),
    ] {
        let site = site(&plan, name);
        assert_eq!(free(site) & expected, 0, "{name}");
        assert_eq!(site.free & TEMPORARIES, TEMPORARIES & !expected, "{name}");
        let after = site.free_after & TEMPORARIES;
        assert_eq!(after, TEMPORARIES & !expected, "{name}");
    }
}

#[test]
fn a_register_is_kept_where_all_are_in_use() {
    let Some(plan) = of("patchable-full", "patchable.s", &[]) else {
        return;
    };
    let sixteen = site(&plan, "full_sixteen");
    assert_eq!((sixteen.free, sixteen.free_after), (0, 0));
    assert!(matches!(sixteen.via, Via::Kept(_)), "{sixteen:x?}");
    assert_eq!((sixteen.tactic, sixteen.patch_len), (Tactic::Site, 12));
    // Eight bytes of nops are not enough for that.
    let eight = site(&plan, "full_eight");
    assert_eq!(eight.free, 0);
    assert!(matches!(eight.via, Via::Kept(_)), "{eight:x?}");
    assert!(eight.displaced.end > eight.patch + 8, "{eight:x?}");
}

#[test]
fn registers_that_a_function_reads_first_are_not_free() {
    let Some(plan) = of("patchable-reads", "patchable.s", &[]) else {
        return;
    };
    let t2 = 1 << 7;
    let nested = site(&plan, "nested");
    assert_eq!((nested.free & t2, free(nested) & t2), (0, 0));
    // A function that is called through another link register has its own convention.
    let save = site(&plan, "save");
    assert_eq!(save.free, 0);
    assert!(matches!(save.via, Via::Kept(_)), "{save:x?}");
    assert_eq!(save.mode, Mode::EntryOnly(EntryOnlyReason::OtherLink));
    let leaves = site(&plan, "leaves");
    assert_eq!(leaves.mode, Mode::Call);
    assert_ne!(free(leaves) & TEMPORARIES, 0);
}

#[test]
fn room_for_the_address_of_a_stub_far_away_is_found() {
    let Some(plan) = of("patchable-far", "patchable.s", &[]) else {
        return;
    };
    let far = |name: &str| {
        let site = site(&plan, name);
        (
            site,
            site.far
                .as_ref()
                .unwrap_or_else(|| panic!("{name}: {site:x?}")),
        )
    };
    let mut taken = Vec::new();
    // Among the nops: after a jump of ten bytes, or of fourteen.
    for (name, len) in [("twenty_four", 10), ("full_thirty_two", 14)] {
        let (site, far) = far(name);
        let literal = far.literal.expect("a place");
        assert_eq!((u64::from(far.patch_len), literal % 8), (len, 0), "{name}");
        let nops = if len == 10 { 24 } else { 32 };
        assert!(
            site.patch + len <= literal && literal + 8 <= site.patch + nops,
            "{site:x?}"
        );
        assert_eq!(far.displaced.start, site.patch);
        let taken_back = match far.spare.back {
            Via::Kept(_) => Via::TAKE,
            _ => 0,
        };
        assert!(literal + 8 + taken_back <= far.displaced.end, "{site:x?}");
        taken.push(literal);
    }
    // In padding, which comes before functions with such room.
    for name in ["sixteen", "eight"] {
        let (site, far) = far(name);
        assert_eq!(far.patch_len, 10, "{name}");
        assert!(far.displaced.end >= site.patch + 10, "{site:x?}");
        let Some(literal) = far.literal else {
            continue;
        };
        assert_eq!(literal % 8, 0, "{name}");
        taken.push(literal);
    }
    assert!(taken.len() > 2, "padding was found for none");
    taken.sort_unstable();
    assert!(
        taken.windows(2).all(|pair| pair[0] + 8 <= pair[1]),
        "{taken:x?}"
    );
    // Functions that were not built for it have none.
    assert_eq!(site(&plan, "keeps_two").far, None);
}
