//! What is refused, and why.

use hodo_probe::Execution;

use crate::code::{alone, count, place, register, request};

function! { kernel: "li a7, 172" "ecall" "ret" }
function! { code_changes: "fence.i" "ret" }
function! { counter: "rdcycle a0" "rdtime a1" "csrr a2, fcsr" "ret" }
function! { exchange:
    "2: lr.w a2, (a0)"
    "bne a2, a1, 3f"
    "addi a2, a2, 1"
    "sc.w a3, a2, (a0)"
    "bnez a3, 2b"
    "3: mv a0, a2"
    "ret"
}
function! { helper: "addi sp, sp, -16" "jr t0" }

unsafe extern "C" {
    fn test_kernel() -> u64;
    fn test_code_changes();
    fn test_counter();
    fn test_exchange(at: *mut u32, old: u32) -> u64;
    fn test_helper();
}

fn text(function: *const (), number: usize) -> Result<(), String> {
    let at = place(function, number);
    match register(
        &request(at)
            .before(count)
            .data(std::ptr::null_mut())
            .disabled(),
    ) {
        Ok(_) => Ok(()),
        Err(refusal) => Err(refusal.to_string()),
    }
}

#[test]
fn instructions_that_cannot_be_probed_say_why() {
    let _alone = alone();
    let refused = |text: &str| Err(text.to_owned());
    let kernel = test_kernel as *const ();
    assert_eq!(
        text(kernel, 1),
        refused("`ecall`: it is a system call, whose address the kernel and signal handlers see")
    );
    assert_eq!(
        text(test_code_changes as *const (), 0),
        refused("`fence.i`: it is about changed code, which a copy would not see")
    );
    let counter = test_counter as *const ();
    assert_eq!(
        text(counter, 0),
        refused(
            "`csrrs a0, cycle, zero`: it uses a control register that may be refused, or whose use has effects of its own"
        )
    );
    assert_eq!((text(counter, 1), text(counter, 2)), (Ok(()), Ok(())));
    let exchange = test_exchange as *const ();
    for (number, name) in [
        "lr.w a2, (a0)",
        "bne a2, a1",
        "c.addi a2, 1",
        "sc.w a3, a2, (a0)",
    ]
    .into_iter()
    .enumerate()
    {
        let text = text(exchange, number).expect_err("it is between lr and sc");
        assert!(text.starts_with(&format!("`{name}")), "{text}");
        assert!(
            text.ends_with(
                "it is between lr and sc, or one of them, where a probe would make sc fail forever"
            ),
            "{text}"
        );
    }
    // What follows is not part of the sequence, and neither is the exit.
    assert_eq!((text(exchange, 4), text(exchange, 5)), (Ok(()), Ok(())));
    let mut word = 5;
    let probe = register(&request(place(exchange, 4)).count()).expect("it can be probed");
    // SAFETY: it gets its own word.
    assert_eq!(unsafe { test_exchange(&raw mut word, 5) }, 6);
    assert_eq!((word, probe.count()), (6, 1));
}

#[test]
fn helpers_that_return_through_another_register_get_no_return_probe() {
    let _alone = alone();
    let at = test_helper as *const () as u64;
    let refusal = register(&request(at).returning(count)).expect_err("it does not return by ra");
    assert_eq!(
        refusal.to_string(),
        "a return probe is not possible: the function's first instruction cannot be moved"
    );
    let entry = register(&request(at).count()).expect("it can be probed");
    assert_ne!(entry.execution(), Execution::OutOfLine);
}
