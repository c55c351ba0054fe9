//! Compatibility with uftrace's command line. uftrace's commands share one set of options, so each accepts the options
//! of all others. hodo's commands do the same; such options have no effect. Options that hodo does not have are refused
//! with a message that says what to use instead.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command};

/// The commands that uftrace has, too.
const COMMANDS: [&str; 7] = [
    "record", "live", "replay", "report", "graph", "dump", "info",
];

/// Commands of uftrace that hodo does not have, and what to use instead.
const MISSING_COMMANDS: [(&str, &str); 4] = [
    (
        "script",
        "hodo dump and hodo report --format=json write what a script can read",
    ),
    ("tui", "hodo graph and hodo report print what it shows"),
    (
        "recv",
        "record on the other machine, and copy the trace directory",
    ),
    ("map", "hodo info --symbols lists the functions of a trace"),
];

/// What happens to an option of uftrace.
#[derive(Clone, Copy)]
enum Fate {
    /// A command of hodo has it, so all commands accept it.
    Known,
    /// Accepted: it chooses how uftrace works internally, or switches off something that hodo does not do.
    NoEffect,
    /// Refused, with what to use instead.
    Refused(&'static str),
}

use Fate::{Known, NoEffect, Refused};

const NO_VALUES: &str = "function tracing records no arguments and return values; probes do: -e 'FILE:FUNCTION $arg1', \
    -e 'r FILE:FUNCTION $retval'";
const NO_KERNEL: &str =
    "hodo traces no functions of the kernel; hodo syscalls shows the system calls of a program";
const NO_NETWORK: &str = "record on the other machine, and copy the trace directory";
const NO_TRIGGERS: &str =
    "probes have actions and conditions: -e 'FILE:FUNCTION traceon', see hodo probe --help";
const NO_DIFF: &str =
    "hodo has no such option; hodo report --format=json of both traces gives two files to compare";

/// An option of uftrace: its letter or 0, its name, whether it takes a value, and what happens to it.
type Row = (char, &'static str, bool, Fate);

/// All options of uftrace 0.13, and some of later versions.
const OPTIONS: &[Row] = &[
    ('\0', "avg-self", false, Known),
    ('\0', "avg-total", false, Known),
    ('a', "auto-args", false, Refused(NO_VALUES)),
    ('A', "argument", true, Refused(NO_VALUES)),
    ('b', "buffer", true, NoEffect),
    ('\0', "chrome", false, Known),
    ('\0', "clock", true, Known),
    ('\0', "color", true, Known),
    ('\0', "column-offset", true, Known),
    ('\0', "column-view", false, Known),
    (
        'C',
        "caller-filter",
        true,
        Refused("hodo graph FUNCTION shows who called it"),
    ),
    ('d', "data", true, Known),
    ('\0', "debug-domain", true, NoEffect),
    ('\0', "demangle", true, Known),
    ('\0', "diff", true, Refused(NO_DIFF)),
    ('\0', "diff-policy", true, Refused(NO_DIFF)),
    ('\0', "disable", false, Known),
    ('D', "depth", true, Known),
    (
        '\0',
        "estimate-return",
        false,
        Refused("hodo has no such option: it records exits"),
    ),
    ('\0', "event-full", false, NoEffect),
    (
        'E',
        "Event",
        true,
        Refused("--event 'GROUP:NAME' records tracepoints and other USDT probes"),
    ),
    ('\0', "flame-graph", false, Known),
    ('\0', "flat", false, Known),
    ('\0', "force", false, Known),
    ('\0', "format", true, Known),
    ('f', "output-fields", true, Known),
    ('F', "filter", true, Known),
    ('g', "agent", false, Known),
    (
        '\0',
        "graphviz",
        false,
        Refused("hodo graph, hodo dump --svg and --flame-graph show the calls"),
    ),
    ('H', "hide", true, Known),
    ('\0', "host", true, Refused(NO_NETWORK)),
    ('k', "kernel", false, Refused(NO_KERNEL)),
    ('\0', "keep-pid", false, Known),
    ('\0', "kernel-buffer", true, Refused(NO_KERNEL)),
    ('\0', "kernel-full", false, Refused(NO_KERNEL)),
    ('\0', "kernel-only", false, Refused(NO_KERNEL)),
    ('\0', "kernel-skip-out", false, NoEffect),
    ('K', "kernel-depth", true, Refused(NO_KERNEL)),
    ('\0', "libmcount-single", false, NoEffect),
    (
        '\0',
        "list-event",
        false,
        Refused("hodo list-events FILE lists the events of a program"),
    ),
    (
        'L',
        "loc-filter",
        true,
        Refused(
            "-F 'NAME@MODULE' and -P 'PATTERN@LIBRARY' choose a file; hodo has no filter by source line",
        ),
    ),
    ('\0', "logfile", true, Known),
    ('l', "nest-libcall", false, Known),
    ('\0', "libname", false, Known),
    ('\0', "libmcount-path", true, NoEffect),
    ('\0', "match", true, Known),
    ('\0', "max-stack", true, NoEffect),
    ('\0', "no-args", false, NoEffect),
    ('\0', "no-comment", false, Known),
    ('\0', "no-event", false, Known),
    ('\0', "no-sched", false, Known),
    ('\0', "no-sched-preempt", false, NoEffect),
    ('\0', "no-libcall", false, Known),
    ('\0', "no-merge", false, Known),
    ('\0', "no-pager", false, Known),
    ('\0', "no-pltbind", false, NoEffect),
    (
        '\0',
        "no-randomize-addr",
        false,
        Refused("setarch -R hodo record PROGRAM does that"),
    ),
    (
        '\0',
        "nop",
        false,
        Refused("hodo has no such option; --trace off records no calls"),
    ),
    ('\0', "num-thread", true, NoEffect),
    ('N', "notrace", true, Known),
    (
        '\0',
        "opt-file",
        true,
        Refused("write $(cat FILE) in its place"),
    ),
    ('p', "pid", true, Known),
    ('\0', "port", true, Refused(NO_NETWORK)),
    ('P', "patch", true, Known),
    (
        '\0',
        "record",
        false,
        Refused("run hodo record PROGRAM first, or hodo live"),
    ),
    ('\0', "report", false, Known),
    ('\0', "rt-prio", true, NoEffect),
    ('r', "time-range", true, Known),
    ('\0', "run-cmd", true, Refused(NO_NETWORK)),
    ('R', "retval", true, Refused(NO_VALUES)),
    ('\0', "sample-time", true, Known),
    (
        '\0',
        "signal",
        true,
        Refused("hodo live -p PID --trace on|off switches a running recording"),
    ),
    ('\0', "sort-column", true, Refused(NO_DIFF)),
    (
        '\0',
        "srcline",
        false,
        Refused("hodo has no such option; hodo probe --list FILE shows the lines of functions"),
    ),
    ('\0', "symbols", false, Known),
    ('s', "sort", true, Known),
    (
        'S',
        "script",
        true,
        Refused(
            "hodo runs no scripts; hodo dump and hodo report --format=json write what one can read",
        ),
    ),
    ('t', "time-filter", true, Known),
    ('\0', "task", false, Known),
    ('\0', "task-newline", false, Known),
    ('\0', "tid", true, Known),
    (
        '\0',
        "time",
        false,
        Refused("hodo info shows the times of a recording"),
    ),
    ('T', "trigger", true, Refused(NO_TRIGGERS)),
    ('U', "unpatch", true, Known),
    ('v', "debug", false, Known),
    ('\0', "verbose", false, Known),
    (
        '\0',
        "with-syms",
        true,
        Refused("--sysroot DIR names the directory with the files of the recorded machine"),
    ),
    (
        'W',
        "watch",
        true,
        Refused("a probe prints a variable: -e 'FILE:FUNCTION VARIABLE', see hodo probe --help"),
    ),
    ('Z', "size-filter", true, Known),
    (
        '\0',
        "usage",
        false,
        Refused("hodo COMMAND --help shows the options"),
    ),
];

/// Returns an error that says what to use instead of a command that only uftrace has.
pub fn missing_command(word: &str) -> Option<clap::Error> {
    let (_, instead) = MISSING_COMMANDS.iter().find(|(name, _)| *name == word)?;
    Some(clap::Error::raw(
        ErrorKind::InvalidSubcommand,
        format!(
            "'{word}' is a command of uftrace that hodo does not have yet: {instead}. \
             hodo live -- {word} runs a program of that name\n"
        ),
    ))
}

/// The actions that uftrace allows after a function's name and an `@`.
const ACTIONS: [&str; 22] = [
    "arg",
    "fparg",
    "retval",
    "auto-args",
    "trace",
    "trace_on",
    "trace-on",
    "traceon",
    "trace_off",
    "trace-off",
    "traceoff",
    "notrace",
    "filter",
    "hide",
    "backtrace",
    "recover",
    "finish",
    "kernel",
    "caller",
    "caller_filter",
    "clear",
    "loc",
];

/// Refuses patterns of `-F`, `-N`, `-H`, `-P` and `-U` that have an action. It would be taken for the name of a module.
///
/// # Errors
/// If there is one; the error says what to use instead.
pub fn check_patterns(matches: &ArgMatches) -> Result<(), clap::Error> {
    for (id, option) in [
        ("filter", "-F"),
        ("notrace", "-N"),
        ("hide", "-H"),
        ("patch", "-P"),
        ("unpatch", "-U"),
    ] {
        let texts = matches.try_get_many::<String>(id).ok().flatten();
        for text in texts.into_iter().flatten() {
            if let Some(action) = action_of(text) {
                let instead = match action.split('=').next() {
                    Some("depth") => "-D counts the depth from the functions of -F",
                    Some("time") => "-t leaves out calls that are too short",
                    Some("size") => "-Z leaves out functions that are too small",
                    Some("notrace") => "-N FUNCTION leaves it out",
                    Some("filter") => "-F FUNCTION alone does that",
                    Some("hide") => "-H FUNCTION hides it in replay and its like",
                    _ => NO_TRIGGERS,
                };
                return Err(clap::Error::raw(
                    ErrorKind::InvalidValue,
                    format!(
                        "{option} '{text}': hodo has no action '{action}' for functions; {instead}\n"
                    ),
                ));
            }
        }
    }
    Ok(())
}

/// Returns the action in a pattern.
fn action_of(text: &str) -> Option<&str> {
    let (_, actions) = text.split_once('@')?;
    actions.split(['@', ',']).find(|action| {
        let name = action.trim_end_matches(|c: char| c.is_ascii_digit());
        action.contains('=')
            || ACTIONS.contains(action)
            || ["arg", "fparg"].contains(&name) && !action.is_empty()
    })
}

/// Returns whether one of the arguments has this name or letter.
fn has(command: &Command, long: &str) -> bool {
    command.get_arguments().any(|arg| {
        arg.get_long() == Some(long) || arg.get_all_aliases().is_some_and(|all| all.contains(&long))
    })
}

fn has_letter(command: &Command, letter: char) -> bool {
    (command.get_arguments()).any(|arg| arg.get_short() == Some(letter))
}

/// Adds the options that a command accepts only because other commands have them.
fn accepting(mut command: Command) -> Command {
    for &(letter, long, value, fate) in OPTIONS {
        if matches!(fate, Refused(_)) || has(&command, long) {
            continue;
        }
        let action = match value {
            true => ArgAction::Append,
            false => ArgAction::Count,
        };
        let mut arg = Arg::new(long).long(long).action(action).hide(true);
        if long == "format" {
            // Any format other than text would not be what the user asked for.
            arg = arg.value_parser(["normal", "text"]);
        }
        if letter != '\0' && !has_letter(&command, letter) {
            arg = arg.short(letter);
        }
        command = command.arg(arg);
    }
    command
}

/// Returns the command line with all options that are accepted.
pub fn extended(mut cli: Command) -> Command {
    for name in COMMANDS {
        cli = extended_for(cli, name);
    }
    cli
}

/// Returns one command with all options that are accepted.
pub fn extended_for(cli: Command, name: &str) -> Command {
    match COMMANDS.contains(&name) {
        true => cli.mut_subcommand(name, accepting),
        false => cli,
    }
}

/// Returns whether a command takes this option, although it has no effect there: uftrace has both.
#[cfg(test)]
pub fn accepts(command: &str, word: &str) -> bool {
    COMMANDS.contains(&command) && row(word).is_some_and(|(.., fate)| !matches!(fate, Refused(_)))
}

/// Returns the uftrace option that is written like this, if the word is one.
fn row(word: &str) -> Option<&'static Row> {
    let name = word.split('=').next().unwrap_or(word);
    OPTIONS.iter().find(|(letter, long, ..)| {
        name.strip_prefix("--") == Some(long)
            || name
                .strip_prefix('-')
                .is_some_and(|rest| *letter != '\0' && rest.chars().eq(std::iter::once(*letter)))
    })
}

/// What does it, of strace's options that `hodo syscalls` does not have: letters or a name, and a tip.
const STRACE: [(&str, &str); 17] = [
    (
        "-k --stack-trace",
        "hodo probe -e 'syscalls:sys_enter_NAME stacktrace' shows the callers of a call",
    ),
    (
        "-P --trace-path",
        "hodo probe -e 'syscalls:sys_enter_openat $params if filename ~ \"/etc/*\"' shows the calls with a path; -e file and grep \
         show those of all files",
    ),
    (
        "-Z --failed-only",
        "hodo probe -e 'syscalls:sys_exit_openat ret if ret < 0' shows calls that fail; --format json has them with \"error\"",
    ),
    (
        "-z --successful-only",
        "hodo probe -e 'syscalls:sys_exit_openat ret if ret >= 0' shows calls that succeed",
    ),
    (
        "-S --summary-sort-by",
        "hodo syscalls -c is sorted by time; --format json has numbers to sort by",
    ),
    (
        "-C --summary",
        "hodo syscalls -c shows the table alone; it and the lines take two runs",
    ),
    (
        "-w --summary-wall-clock",
        "the times of hodo syscalls -c are those between beginning and end already",
    ),
    (
        "-U --summary-columns",
        "hodo syscalls -c --format json has all columns",
    ),
    (
        "-i --instruction-pointer",
        "hodo probe -e 'syscalls:sys_enter_NAME stacktrace' shows where a call is made",
    ),
    (
        "-n --syscall-number",
        "hodo syscalls --format json has the numbers of calls",
    ),
    (
        "-q --quiet",
        "hodo syscalls says nothing when it attaches; grep -v '^+++' leaves out how tasks end",
    ),
    (
        "-A --output-append-mode",
        "-o - writes to stdout, and >>FILE of a shell appends that to a file",
    ),
    (
        "-E --env",
        "env NAME=VALUE before the program sets a variable for it",
    ),
    ("-u --user", "run hodo as that user: sudo -u, or runuser"),
    (
        "-a --columns",
        "hodo syscalls always puts results into column 40, as strace does by itself",
    ),
    (
        "-x --strings-in-hex",
        "hodo syscalls --format json has texts that a script can convert",
    ),
    (
        "-b --detach-on",
        "hodo syscalls --no-follow leaves children alone",
    ),
];

/// Returns what to say about an unknown option: what replaces it, or that nothing does. `command`: the command that it
/// was given to.
pub fn tip(cli: &Command, command: Option<&str>, error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    if !word.starts_with('-') {
        return None;
    }
    let is = |spellings: &str| spellings.split(' ').any(|one| one == word);
    if command == Some("syscalls")
        && let Some((_, tip)) = STRACE.iter().find(|(spellings, _)| is(spellings))
    {
        return Some((*tip).to_owned());
    }
    // A letter means something else to the other commands.
    let is_of_uftrace = command.is_none_or(|command| COMMANDS.contains(&command));
    if is_of_uftrace && let Some((.., Refused(instead))) = row(word) {
        return Some((*instead).to_owned());
    }
    if error.get(ContextKind::SuggestedArg).is_some() {
        return None;
    }
    let name = word.trim_start_matches('-');
    let of = |command: &&Command| match word.starts_with("--") {
        true => has(command, name),
        false => name.chars().next().is_some_and(|c| has_letter(command, c)),
    };
    let visible = cli.get_subcommands().filter(|c| !c.is_hide_set());
    let others: Vec<_> = (visible.filter(of))
        .map(|command| format!("hodo {}", command.get_name()))
        .collect();
    Some(match others.is_empty() {
        true => "hodo has no such option; hodo COMMAND --help shows those of a command".to_owned(),
        false => format!("it is an option of {}", others.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    #[test]
    fn every_option_is_accepted_or_replaced() {
        let cli = extended(Cli::command());
        cli.clone().debug_assert();
        for name in COMMANDS {
            let command = cli.find_subcommand(name).unwrap();
            for (_, long, _, fate) in OPTIONS {
                assert_eq!(
                    has(command, long),
                    !matches!(fate, Refused(_)),
                    "{name} --{long}"
                );
            }
        }
    }

    #[test]
    fn options_marked_as_known_are_options_of_hodo() {
        let cli = Cli::command();
        for (_, long, _, fate) in OPTIONS {
            if matches!(fate, Known) {
                let mut all = COMMANDS.iter();
                let found = all.any(|name| has(cli.find_subcommand(name).unwrap(), long));
                assert!(found, "--{long}");
            }
        }
    }

    #[test]
    fn letters_mean_what_they_mean_in_uftrace() {
        let cli = extended(Cli::command());
        for name in COMMANDS {
            let command = cli.find_subcommand(name).unwrap();
            for &(letter, long, ..) in OPTIONS {
                let mut own = command
                    .get_arguments()
                    .filter(|arg| arg.get_short() == Some(letter));
                if letter != '\0'
                    && let Some(arg) = own.next()
                {
                    let aliases = arg.get_all_aliases().unwrap_or_default();
                    assert!(
                        arg.get_long() == Some(long) || aliases.contains(&long),
                        "{name} -{letter}"
                    );
                }
            }
        }
    }
}
