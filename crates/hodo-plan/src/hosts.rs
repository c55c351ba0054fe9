//! Programs that inspect their own stacks or generate code at run time, and which parts of them can be traced.

use std::ops::Range;
use std::path::Path;

use hodo_abi::Isa;
use hodo_symbols::{Nature, Symbols};
use object::{Object, ObjectSymbol, ObjectSymbolTable};

use crate::image::Image;
use crate::model::EntryOnlyReason;
use crate::static_keys::{self, Statics};

/// What kind of program an image belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Host {
    /// Nothing special.
    Plain,
    /// Go moves its stacks, and uses return addresses to find what to change.
    Go,
    /// An unwinder's library: it reads its own frames.
    Unwinder,
    /// A static program without symbols, but with exceptions: its unwinder cannot be located.
    Unknown,
    /// A runtime with a just-in-time compiler or collector that walks the stack by return addresses.
    Runtime(&'static str),
    /// Haskell compiled by GHC: functions jump to each other, and the collector's tables lie between them.
    Haskell,
    /// Valgrind: it translates the program's code. This range contains the code that it lends to the program.
    Valgrind(Range<u64>),
    /// Nothing in it can be changed, for this reason.
    Left(&'static str),
}

/// Prefixes of symbols that reveal a runtime, and its name. Code made by `ocamlopt` enters the collector through
/// `caml_call_gc`: the runtime defines it, plugins import it. The interpreter of OCaml's bytecode does not have it.
const RUNTIMES: [(&str, &str); 12] = [
    ("stg_ap_0_fast", GHC),
    ("vgPlain_", VALGRIND),
    ("caml_call_gc", OCAML),
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

const OCAML: &str = "OCaml";
const GHC: &str = "GHC";
const MONO_AOT: &str = "Mono's code";

const VALGRIND: &str = "Valgrind";
const TRANSLATED: &str = "Valgrind translates some of its own code as if it were the program's";

/// Words in the constant data of a runtime, for programs without a symbol table: the environment variable that
/// configures OCaml's collector; the same for GHC; the library that Valgrind's tools preload into each program.
const WORDS: [(&str, &str); 3] = [
    ("OCAMLRUNPARAM", OCAML),
    ("GHCRTS", GHC),
    ("vgpreload_core", VALGRIND),
];

/// Classifies an image.
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
    match by_symbols(image, symbols).or_else(|| by_words(image)) {
        Some(VALGRIND) => return lent(image).map_or(Host::Left(TRANSLATED), Host::Valgrind),
        Some(GHC) => return Host::Haskell,
        Some(MONO_AOT) => {
            return Host::Left(
                "Mono reads and changes the calls in code that it has compiled ahead of time",
            );
        }
        Some(name) => return Host::Runtime(name),
        None => {}
    }
    let named = symbols.functions.iter().any(|f| f.nature == Nature::Named);
    if !named && !image.has_section(".dynamic") && image.has_section(".gcc_except_table") {
        return Host::Unknown;
    }
    Host::Plain
}

/// Returns the runtime that the names of functions reveal: names that the image defines, and names that it imports if
/// only code made by the runtime's compiler can call them.
fn by_symbols(image: &Image<'_>, symbols: &Symbols) -> Option<&'static str> {
    let known = |symbol: &str| {
        let mut runtimes = RUNTIMES.iter();
        let found = runtimes.find(|(start, _)| symbol.starts_with(start));
        found.map(|(_, name)| *name)
    };
    let functions = symbols.functions.iter();
    let names = functions.flat_map(|f| std::iter::once(&f.name).chain(&f.aliases));
    let mut names = names.map(String::as_str);
    names.find_map(known).or_else(|| {
        let table = image.file.dynamic_symbol_table()?;
        let known = |name: &str| match name {
            "stg_ap_0_fast" | "stg_upd_frame_info" => Some(GHC),
            "mono_aot_file_info" => Some(MONO_AOT),
            "caml_call_gc" => Some(OCAML),
            // A plugin of OCaml code that allocates nothing still has its frame tables.
            _ if name.starts_with("caml") && name.ends_with("frametable") => Some(OCAML),
            _ => None,
        };
        let mut names = table.symbols().filter_map(|symbol| symbol.name().ok());
        names.find_map(known)
    })
}

/// Returns the runtime that words in the constant data reveal, in images without a symbol table.
fn by_words(image: &Image<'_>) -> Option<&'static str> {
    if image.has_section(".symtab") {
        return None;
    }
    let mut words = WORDS.iter();
    let found = words.find(|(word, _)| has_word(image, word));
    found.map(|(_, name)| *name)
}

/// Returns whether the constant data has this word at the end of a C string. Programs that only mention the word, as
/// this one does, do not end a string with it.
fn has_word(image: &Image<'_>, word: &str) -> bool {
    let finder = memchr::memmem::Finder::new(word);
    let ends = |bytes: &[u8], at: usize| bytes.get(at + word.len()) == Some(&0);
    let mut constants = image.constants();
    constants.any(|bytes| finder.find_iter(bytes).any(|at| ends(bytes, at)))
}

/// The code that Valgrind lends the program. It begins with a signal handler's return and a system call's stand-in,
/// `gettimeofday`, and ends with a row of `ud2`.
fn lent(image: &Image<'_>) -> Option<Range<u64>> {
    if image.isa.isa() != Isa::X86_64 {
        return None;
    }
    const START: [u8; 18] = *b"\x48\xc7\xc0\x0f\0\0\0\x0f\x05\x0f\x0b\x48\xc7\xc0\x60\0\0\0";
    const END: [u8; 8] = *b"\x0f\x0b\x0f\x0b\x0f\x0b\x0f\x0b";
    image.text.iter().find_map(|text| {
        let start = memchr::memmem::find(text.bytes, &START)?;
        let len = memchr::memmem::find(&text.bytes[start..], &END)?;
        let start = text.addr + start as u64;
        Some(start..start + len as u64)
    })
}

impl Host {
    /// Returns why no function of the image can be traced.
    pub fn refuses(&self) -> Option<&'static str> {
        match self {
            Self::Go => Some("Go moves its stacks and finds their frames by return address"),
            Self::Left(reason) => Some(reason),
            _ => None,
        }
    }

    /// Returns why no instruction of an image can have a probe: because of the kind of program, or of the image itself.
    pub fn refuses_all_probes(&self, image: &Image<'_>, statics: &Statics) -> Option<&'static str> {
        if image.relocates_code() {
            Some("its code is relocated when it is loaded")
        } else if statics.damage.is_some() {
            Some(static_keys::DAMAGED)
        } else {
            self.refuses_probes()
        }
    }

    /// Returns why no instruction of this kind of program can have a probe.
    fn refuses_probes(&self) -> Option<&'static str> {
        match self {
            Self::Haskell => Some(
                "GHC keeps its collector's tables between instructions, and they cannot be told from code",
            ),
            Self::Go => {
                Some("Go looks up functions by address, and knows no addresses outside its code")
            }
            _ => self.refuses(),
        }
    }

    /// Returns why a function must not be changed. If possible, V8 maps the file a second time to call its own
    /// functions by short calls from generated code; otherwise (in overlay file systems, as in containers) it copies
    /// what is in memory.
    pub fn copies(&self, name: &str) -> Option<&'static str> {
        (*self == Self::Runtime("V8") && name.starts_with("Builtins_"))
            .then_some("V8 may make a copy of it, in which a jump would lead elsewhere")
    }

    /// Returns why the code at an address must not be changed.
    pub fn lends(&self, addr: u64) -> Option<&'static str> {
        let is_lent = |lent: &Range<u64>| lent.contains(&addr);
        matches!(self, Self::Valgrind(lent) if is_lent(lent)).then_some(TRANSLATED)
    }

    /// Returns why only entries can be recorded.
    pub fn mode(&self) -> Option<EntryOnlyReason> {
        match self {
            Self::Runtime(_) | Self::Unwinder | Self::Unknown => Some(EntryOnlyReason::WalksStack),
            Self::Haskell => Some(EntryOnlyReason::NotCalled),
            Self::Plain | Self::Go | Self::Valgrind(_) | Self::Left(_) => None,
        }
    }

    /// Returns how calls of a function in another image are recorded. OCaml's compiler also calls its own functions in
    /// other images; it calls C functions in ways that tell the collector where its own frames end.
    pub fn calls(&self, name: &str) -> Option<EntryOnlyReason> {
        (*self == Self::Runtime(OCAML) && name.starts_with("caml"))
            .then_some(EntryOnlyReason::WalksStack)
    }

    /// Returns a remark for the user.
    pub fn remark(&self) -> Option<String> {
        match self {
            Self::Plain | Self::Unwinder | Self::Valgrind(_) => None,
            Self::Left(reason) => Some(format!("none of its functions is traced: {reason}")),
            Self::Haskell => Some(
                "functions compiled by GHC jump to each other and do not return: only the entries of the program's functions are recorded"
                    .to_owned(),
            ),
            Self::Unknown => Some(
                "a static program without symbols may have an unwinder that cannot be recognized: only entries are recorded"
                    .to_owned(),
            ),
            Self::Go => Some(
                "a Go program: its functions are not traced, because Go moves its stacks and finds their frames by return \
                 address; calls into C libraries are traced"
                    .to_owned(),
            ),
            Self::Runtime(OCAML) => Some(
                "the OCaml runtime finds frames by return addresses: only the entries of the program's functions are recorded"
                    .to_owned(),
            ),
            Self::Runtime(name) => Some(format!(
                "the {name} runtime walks the stack by return addresses: only the entries of its functions are recorded, \
                 and code that it generates at run time is not traced"
            )),
        }
    }
}
