//! Programs that cannot run under a tracer at all: they are released and run untraced.

use crate::arch;
use hodo_module::Module;

/// Functions of sanitizers, and why a program that contains them is released. AddressSanitizer and its kin end with a
/// search for leaks that refuses to work under ptrace (compiler-rt, `sanitizer_stoptheworld_linux_libcdep.cpp`);
/// ThreadSanitizer and MemorySanitizer need the address space for themselves (`tsan_platform.h`, `msan.h`).
const SANITIZERS: [(&str, &str); 5] = [
    (
        "__tsan_init",
        "ThreadSanitizer needs the whole address space",
    ),
    (
        "__msan_init",
        "MemorySanitizer needs the whole address space",
    ),
    (
        "__asan_init",
        "AddressSanitizer's search for leaks does not work under ptrace",
    ),
    ("__lsan_init", "LeakSanitizer does not work under ptrace"),
    (
        "__hwasan_init",
        "HWAddressSanitizer's search for leaks does not work under ptrace",
    ),
];

/// Why a program must not be traced.
pub fn reason(module: &Module) -> Option<&'static str> {
    if let Some(reason) = arch::unsuited(&module.image.bytes) {
        return Some(reason);
    }
    let find = |name: &str| SANITIZERS.iter().find(|(symbol, _)| *symbol == name);
    let functions = module.plan.functions.iter().map(|f| f.name.as_str());
    // Not all of them are called: some are only in a table of functions that run first.
    let imports = module.image.imports();
    functions
        .chain(imports.iter().map(String::as_str))
        .filter(|name| name.starts_with("__") && name.ends_with("san_init"))
        .find_map(find)
        .map(|(_, reason)| *reason)
}
