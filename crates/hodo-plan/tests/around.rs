//! Plans of a few probes, for which only the code around them is decoded, are those that are made from all code.
#![cfg(target_arch = "x86_64")]

use std::path::Path;
use std::process::Command;

use hodo_plan::model::{ProbePlan, Wanted};
use hodo_plan::{PlanOptions, Survey, is_planned_apart, plan_probes_at};

/// Code that leads from one function into another: by branches, by a table of the other function, and as data. `LOW`:
/// addresses may be constants of 32 bits. They are in the midst of the table there, but are not those of other tables.
/// `HIGH`: only constants without a sign.
const SOURCE: &str = r#"
    .text
    .globl switch
    .type switch, @function
switch:
    lea table(%rip), %rdx
    movslq (%rdx,%rdi,4), %rax
    add %rdx, %rax
    jmp *%rax
    .size switch, .-switch
    .type first_gap, @function
first_gap:
    .fill 600, 1, 0x90
    ret
    .size first_gap, .-first_gap
    .globl probed
    .type probed, @function
probed:
    xor %edi, %edi
.Lzeroth:
    mov $5, %esi
    mov $39, %eax
.Lfirst:
    nop
.Lsecond:
    syscall
    nop
.Lthird:
    mov $1, %ecx
    mov $2, %edx
.Lfourth:
    syscall
    xor %ecx, %ecx
    mov $3, %edx
    cmp $4, %eax
    je 1f
    syscall
1:  ret
    .size probed, .-probed
    .type second_gap, @function
second_gap:
    .fill 600, 1, 0x90
    ret
    .size second_gap, .-second_gap
    .globl other
    .type other, @function
other:
    test %edi, %edi
    je .Lthird
    cmpl $0x12345678, .Lfourth(%rip)
    call probed
    jc 1f
    jmp *%rax
1:  ret
    .size other, .-other
    .type constants, @function
constants:
    .ifdef LOW
    .irp entry, 4, 8, 12, 16, 20, 24, 28
    mov table + \entry, %eax
    .endr
    .endif
    .ifdef HIGH
    mov $.Lzeroth, %esi
    .endif
    ret
    .size constants, .-constants
    .type large, @function
large:
    .fill 8000, 1, 0x90
    ret
    .size large, .-large
    .section .rodata
table:
    .rept 6
    .long other - table
    .endr
    .long .Lfirst - table, other - table, .Lsecond - table
next:
    .long probed - table
    .data
    .quad next
"#;

/// The plans from the part of the code and from all of it.
fn plans(path: &Path, bytes: &[u8], survey: &Survey<'_>, addresses: &[u64]) -> [ProbePlan; 2] {
    let options = PlanOptions::default();
    let part = plan_probes_at(path, (bytes, None), addresses, &options).expect("a plan");
    [part, survey.plan_probes(Wanted::At(addresses), &options)]
}

/// The addresses of all instructions that can have a probe.
fn instructions(survey: &Survey<'_>) -> Vec<u64> {
    let plan = survey.plan_probes(Wanted::Every, &PlanOptions::default());
    let sites = plan.sites.iter().flat_map(|site| &site.probes);
    sites.map(|probe| probe.addr).collect()
}

#[test]
fn what_leads_to_a_probe_from_elsewhere_is_found() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = directory.join(format!("around-{}.s", std::process::id()));
    std::fs::write(&source, SOURCE).expect("a source");
    let kinds: [(&str, &[&str]); 3] = [
        ("shared", &["-shared"]),
        ("low", &["-no-pie", "-Wa,--defsym,LOW=1"]),
        (
            "high",
            &[
                "-no-pie",
                "-Wa,--defsym,HIGH=1",
                "-Wl,-Ttext-segment=0x90000000",
            ],
        ),
    ];
    for (kind, flags) in kinds {
        let file = source.with_extension(kind);
        let mut gcc = Command::new("gcc");
        gcc.args(["-nostdlib", "-Wl,-e,probed", "-Wl,-Bsymbolic"])
            .args(flags);
        let done = gcc.arg(&source).arg("-o").arg(&file).status();
        assert!(done.expect("gcc").success());
        let bytes = std::fs::read(&file).expect("a library");
        let survey = Survey::new(&file, &bytes, 1).expect("a survey");
        let functions = survey.plan(&PlanOptions::default()).functions;
        let function = functions.iter().find(|function| function.name == "probed");
        let function = function.expect("the function");
        for addr in function.addr..function.addr + function.size {
            let [part, whole] = plans(&file, &bytes, &survey, &[addr]);
            assert_eq!(part, whole, "{kind}: {addr:#x}");
        }
        let apart = is_planned_apart(&file, &bytes, &[function.addr]).expect("a survey");
        assert_eq!(apart, kind != "high", "{kind}");
        std::fs::remove_file(file).expect("removed");
    }
    std::fs::remove_file(source).expect("removed");
}

#[test]
fn plans_of_a_few_probes_are_those_of_the_whole_file() {
    let own = std::env::current_exe().expect("this test");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("mappings");
    let libc = maps.lines().find(|line| line.ends_with("/libc.so.6"));
    let libc = libc.and_then(|line| line.split_whitespace().last());
    for path in [Some(own.as_path()), libc.map(Path::new)] {
        let Some(path) = path else { continue };
        let bytes = std::fs::read(path).expect("a file");
        let survey = Survey::new(path, &bytes, 0).expect("a survey");
        let all = instructions(&survey);
        for part in 0..8 {
            // Some instructions, and some addresses that may be inside of one.
            let step = all.len() / 24 + 1;
            let some = all.iter().skip(part * step / 8).step_by(step);
            let some: Vec<u64> = some.map(|addr| addr + part as u64 % 2).collect();
            let [part, whole] = plans(path, &bytes, &survey, &some);
            assert_eq!(part, whole, "{}: {some:x?}", path.display());
            assert!(
                is_planned_apart(path, &bytes, &some).expect("a survey"),
                "{}",
                path.display()
            );
        }
    }
}
