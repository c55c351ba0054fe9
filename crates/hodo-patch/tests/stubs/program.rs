//! This program as the planner sees it: compiled functions, and calls into shared libraries.

use std::hint::black_box;

use hodo_plan::model::{LibcallSite, Plan, PlanOptions, PlannedFunction, Tactic};
use hodo_trace::format::tcb;
use hodo_trace::{CallStep, Left};

use crate::code::leaf;
use crate::isa::NATIVE;
use crate::world::{World, timed};

/// The load bias of this program: addresses in memory minus those in its file.
fn bias(plan: &Plan) -> u64 {
    let function = plan
        .functions
        .iter()
        .find(|function| function.name == "hodo_test_leaf");
    let here = (leaf as *const ()).expose_provenance() as u64;
    here - function.expect("the function").addr
}

/// The plan of this program, and its file.
fn plan() -> (Plan, Vec<u8>) {
    let path = std::env::current_exe().expect("this program");
    let bytes = std::fs::read(&path).expect("this program");
    let options = PlanOptions {
        threads: 2,
        ..PlanOptions::default()
    };
    (
        hodo_plan::plan(&path, &bytes, &options).expect("a plan"),
        bytes,
    )
}

/// The work that is recorded: loops, calls through pointers, allocations, library calls.
fn work() -> String {
    let mut all = String::new();
    for number in 0..40u32 {
        let code = [number.wrapping_mul(0x0101_4567) | 3, 0x0000_8067, number];
        let bytes: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
        for insn in hodo_isa::NATIVE.sweep(black_box(&bytes), 0x1000) {
            all += &hodo_isa::NATIVE.text(&bytes[(insn.addr - 0x1000) as usize..], insn.addr);
        }
    }
    all
}

/// Returns whether a function is compiled code that `work` reaches.
fn is_traced(name: &str) -> bool {
    name.contains("hodo_isa") && (name.contains(NATIVE) || name.contains("4code"))
}

#[test]
fn compiled_functions_and_library_calls_are_recorded() {
    let expected = work();
    let (plan, file) = plan();
    let functions: Vec<_> = plan
        .functions
        .iter()
        .filter(|function| is_traced(&function.name))
        // Nothing here handles breakpoints.
        .filter(|function| {
            let site = function.outcome.as_ref();
            site.is_ok_and(|site| site.tactic != Tactic::Trap)
        })
        .collect();
    let refused = plan
        .functions
        .iter()
        .filter(|function| is_traced(&function.name) && function.outcome.is_err())
        .count();
    assert!(functions.len() > 200, "{} functions", functions.len());
    assert!(refused * 20 < functions.len(), "{refused} are refused");
    let calls: Vec<_> = plan
        .libcalls
        .iter()
        .filter(|call| {
            matches!(
                &*call.name,
                "memcpy" | "memmove" | "memset" | "malloc" | "free"
            )
        })
        .collect();
    assert!(calls.len() >= 4, "{} library calls", calls.len());
    let program = (&plan, &*file);
    let world = World::new(timed(), 60);
    let (found, text) = recorded(world, program, &functions, &calls);
    assert!(found == expected, "what the program does is the same");
    for name in ["+malloc -malloc", "+free -free"] {
        assert!(text.contains(name), "{name}");
    }
    // And through an island that is far away. Library calls have no such stubs.
    let world = World::far(timed(), 60);
    let (found, again) = recorded(world, program, &functions, &[]);
    assert!(found == expected, "what the program does is the same");
    let calls = |text: &str| {
        let library = ["malloc", "free", "memcpy", "memmove", "memset"];
        let is_call = |word: &&str| !library.contains(&&word[1..]);
        text.split(' ').filter(is_call).count()
    };
    assert_eq!(calls(&again), calls(&text));
}

/// What is found while this program is recorded, and the records.
fn recorded(
    mut world: World,
    (plan, file): (&Plan, &[u8]),
    functions: &[&PlannedFunction],
    calls: &[&LibcallSite],
) -> (String, String) {
    let bias = bias(plan);
    let block = world.enter(1);
    let named = functions
        .iter()
        .map(|&function| (&*function.name, function));
    world.trace_planned((plan, file), bias, named, calls);
    let found = work();
    world.restore();
    assert_eq!(world.get(block + tcb::BAD_FRAMES), 0);
    let trace = world.read("program", 1);
    let (mut entries, mut exits, mut others) = (0, 0, 0);
    let mut open = trace.calls(Vec::new());
    for found in trace.records(&trace.tasks[0]) {
        open.feed(found, |step| match step {
            CallStep::Enter { .. } => entries += 1,
            CallStep::Leave {
                left: Left::Returned | Left::Tail,
                ..
            } => exits += 1,
            other => {
                others += 1;
                println!("{other:?}");
            }
        });
    }
    assert!(entries > 1000, "{entries} calls");
    assert_eq!(exits, entries);
    assert_eq!(others, 0);
    (found, world.text(1))
}
