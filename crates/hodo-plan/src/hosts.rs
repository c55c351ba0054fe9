//! Programs that look at their own stacks, or make code as they run: what of them can be traced.

use std::path::Path;

use hodo_symbols::{Nature, Symbols};

use crate::image::Image;
use crate::model::EntryOnlyReason;

/// What kind of program an image belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Host {
    /// Nothing special.
    Plain,
    /// Go moves its stacks, and finds what to change by the return addresses.
    Go,
    /// An unwinder's library: it reads its own frames.
    Unwinder,
    /// A static program without symbols, and with exceptions: the unwinder is somewhere in it.
    Unknown,
    /// A runtime with a just-in-time compiler or collector that walks the stack by return addresses.
    Runtime(&'static str),
}

/// Symbols that only such a runtime has, and its name.
const RUNTIMES: [(&str, &str); 9] = [
    ("_ZN2v88internal7Isolate", "V8"),
    ("_ZN2v87Isolate", "V8"),
    ("JNI_CreateJavaVM", "Java"),
    ("coreclr_initialize", ".NET"),
    ("mono_jit_init", "Mono"),
    ("luaJIT_setmode", "LuaJIT"),
    ("JS_NewContext", "SpiderMonkey"),
    ("_ZN3JSC", "JavaScriptCore"),
    ("pypy_main_startup", "PyPy"),
];

/// Finds out about an image.
pub(crate) fn detect(image: &Image<'_>, symbols: &Symbols, path: &Path) -> Host {
    let go = [
        ".gopclntab",
        ".go.buildinfo",
        ".note.go.buildid",
        ".data.rel.ro.gopclntab",
    ];
    if go.iter().any(|name| image.has_section(name)) {
        return Host::Go;
    }
    let defines = |name: &str| {
        let is = |f: &hodo_symbols::Function| f.name == name || f.aliases.iter().any(|a| a == name);
        symbols.functions.iter().any(is)
    };
    let file = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    if defines("_Unwind_RaiseException")
        && (file.starts_with("libgcc_s") || file.starts_with("libunwind"))
    {
        return Host::Unwinder;
    }
    let named = symbols.functions.iter().any(|f| f.nature == Nature::Named);
    if !named && !image.has_section(".dynamic") && image.has_section(".gcc_except_table") {
        return Host::Unknown;
    }
    for function in &symbols.functions {
        for (symbol, name) in RUNTIMES {
            if function.name.starts_with(symbol)
                || function.aliases.iter().any(|a| a.starts_with(symbol))
            {
                return Host::Runtime(name);
            }
        }
    }
    Host::Plain
}

impl Host {
    /// Why no function of the image can be traced.
    pub fn refuses(self) -> Option<&'static str> {
        (self == Self::Go).then_some("Go moves its stacks by what return addresses tell it")
    }

    /// Why a function must stay as it is: V8 takes a second mapping of the file for its own functions where it can, for short
    /// calls from the code that it makes, and else (in an overlay file system, as containers have) a copy of what is in memory.
    pub fn copies(self, name: &str) -> Option<&'static str> {
        (self == Self::Runtime("V8") && name.starts_with("Builtins_"))
            .then_some("V8 may make a copy of it, in which a jump would lead elsewhere")
    }

    /// Why only entries can be recorded.
    pub fn mode(self) -> Option<EntryOnlyReason> {
        matches!(self, Self::Runtime(_) | Self::Unwinder | Self::Unknown)
            .then_some(EntryOnlyReason::WalksStack)
    }

    /// What the user should know.
    pub fn remark(self) -> Option<String> {
        match self {
            Self::Plain | Self::Unwinder => None,
            Self::Unknown => Some(
                "a static program without symbols has an unwinder that cannot be told apart: only entries are recorded"
                    .to_owned(),
            ),
            Self::Go => Some(
                "a Go program: its functions are not traced, for Go moves its stacks by what return addresses tell it; \
                 calls into C libraries are"
                    .to_owned(),
            ),
            Self::Runtime(name) => Some(format!(
                "the {name} runtime walks the stack by return addresses: of its functions only the entries are recorded, \
                 and nothing of the code that it makes as it runs"
            )),
        }
    }
}
