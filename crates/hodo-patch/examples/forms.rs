//! Calls a function many times that is traced in one of the forms that a site can have on RISC-V, so that an emulator
//! can count the instructions that this takes: `forms KIND timed|untimed CALLS`. The kinds are those in `kinds`; with
//! `-untraced` after it, the same function is as it was. Prints the bytes at the site and of the stub, and how many
//! instructions more than those of the record there are: those that lead to the stub and back, less the nops that are
//! not executed any more. `benches/riscv64.sh` runs it.

#[cfg(target_arch = "riscv64")]
#[allow(dead_code, reason = "tests use the rest")]
#[path = "../tests/stubs/riscv64/code.rs"]
mod code;
#[cfg(target_arch = "riscv64")]
#[allow(dead_code, reason = "tests use the rest")]
#[path = "../tests/stubs/riscv64/isa.rs"]
mod isa;
#[cfg(target_arch = "riscv64")]
#[allow(dead_code, reason = "tests use the rest")]
#[path = "../tests/stubs/world.rs"]
mod world;
#[cfg(target_arch = "riscv64")]
#[allow(dead_code, reason = "tests use the rest")]
#[path = "../tests/stubs/writer.rs"]
mod writer;

#[cfg(not(target_arch = "riscv64"))]
fn main() {
    eprintln!("it is about RISC-V");
}

#[cfg(target_arch = "riscv64")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    riscv64::main()
}

#[cfg(target_arch = "riscv64")]
mod riscv64 {
    use std::error::Error;
    use std::hint::black_box;

    use hodo_isa::Via;
    use hodo_isa::code::Flow;
    use hodo_patch::Recording;
    use hodo_plan::model::{Extra, Far, Spare, Tactic};

    use crate::code::{leaf, room, room8, room16, room24};
    use crate::world::{Site, World, address, site};

    type Function = extern "C-unwind" fn(u64, u64) -> u64;

    /// What is free where the convention gives all temporaries and the registers of arguments away that the function
    /// does not read; and where nobody knows.
    const FREE: u32 = 0xF003_F040;
    const T1: u8 = 6;

    /// What one of the functions that are not used here calls.
    #[unsafe(no_mangle)]
    extern "C" fn hodo_test_handled() {}

    /// The function, the site in it, and whether its island is far away.
    fn kind(name: &str) -> Option<(Function, Site, bool)> {
        let (free, kept) = (Via::Free(T1), Via::Kept(T1));
        let (function, displaced, via, registers): (Function, u64, Via, u32) = match name {
            "B" => (room8, 8, free, FREE),
            "B-few" => (room8, 8, free, 0),
            "A" => (room16, 16, kept, 0),
            "A-free" => (room16, 16, kept, FREE),
            "C" => (room24, 24, free, FREE),
            "free" => (leaf, 8, free, FREE),
            "kept" => (leaf, 16, kept, 0),
            "hop-free" => (leaf, 4, free, FREE),
            "hop-kept" => (leaf, 8, kept, 0),
            _ => return None,
        };
        let at = address(function as *const ());
        let mut site = site("function", at, displaced, via).free(registers, registers);
        let plan = &mut site.plan;
        if name.starts_with("hop") {
            plan.tactic = Tactic::Hop;
            plan.patch_len = 4;
            plan.extra = Extra::HopSlot(address(room as *const ()) as u64);
        }
        let is_far = name == "C";
        let long = hodo_isa::NATIVE.far_jump(via);
        let far = || Far {
            patch_len: long.map_or(0, |long| long.len as u8),
            literal: long.map(|long| (at as u64 + long.len).next_multiple_of(8)),
            displaced: plan.displaced.clone(),
            spare: Spare {
                back: via,
                ..Spare::default()
            },
        };
        plan.far = is_far.then(far).map(Box::new);
        Some((function, site, is_far))
    }

    /// Instructions up to the end of the code, or to the jump that leaves it. Nops are counted apart.
    fn count(code: &[u8], at: u64) -> (usize, usize) {
        let (mut found, mut nops) = (0, 0);
        for insn in hodo_isa::NATIVE.sweep(code, at) {
            found += 1;
            nops += usize::from(insn.padding);
            if matches!(insn.flow, Flow::IndirectJump | Flow::Jump(_)) {
                break;
            }
        }
        (found, nops)
    }

    pub fn main() -> Result<(), Box<dyn Error>> {
        let arguments: Vec<String> = std::env::args().collect();
        let [_, name, timed, calls] = arguments.as_slice() else {
            return Err("forms KIND timed|untimed CALLS".into());
        };
        let untraced = name.strip_suffix("-untraced");
        let (function, site, is_far) = kind(untraced.unwrap_or(name)).ok_or("no such kind")?;
        let recording = Recording {
            timed: timed == "timed",
            ..Recording::default()
        };
        let mut world = match is_far {
            true => World::far(recording, 2),
            false => World::new(recording, 2),
        };
        world.enter(1);
        if untraced.is_none() {
            let plan = site.plan.clone();
            let old = world.code(plan.patch, (plan.displaced.end - plan.patch) as usize);
            let (displaced, nops) = count(&old, plan.patch);
            world.trace(&[site]);
            let writes = &world.patches.writes;
            let bytes: usize = writes.iter().map(|(_, bytes)| bytes.len()).sum();
            let lead: usize = writes.iter().map(|(at, bytes)| count(bytes, *at).0).sum();
            // The address of a stub that is far away is no instruction.
            let literal = plan.far.and_then(|far| far.literal);
            let address = writes.iter().filter(|(at, _)| Some(*at) == literal);
            let address: usize = address.map(|(at, bytes)| count(bytes, *at).0).sum();
            let stub = world.stub();
            let body = world.code(stub.body, (stub.slow - stub.body) as usize);
            let back = count(&body, stub.body).0 - (displaced - nops);
            let ways = (lead - address + back) as i64 - nops as i64;
            println!("{bytes} {} {ways}", stub.slow - stub.start);
        }
        for n in 0..calls.parse()? {
            black_box(function(black_box(n), 1));
        }
        Ok(())
    }
}
