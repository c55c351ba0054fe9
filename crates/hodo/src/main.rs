//! The `hodo` command.

#[macro_use(warn_user)]
extern crate hodo_record;

mod args;
mod argv;
mod cache;
mod debuginfod;
mod detach;
mod end;
mod events;
mod inspect;
mod interrupt;
mod keys;
mod live;
mod mem;
mod memory;
mod output;
mod plan;
mod progress;
mod run;
mod syscalls;
mod temporary;
mod uftrace;
mod view;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use args::{Cli, Command, Order};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};

#[global_allocator]
static MEMORY: hodo_record::WithReserve<memory::Memory> = hodo_record::WithReserve(memory::Memory);

/// A stack of this many bytes is large enough.
const STACK: usize = 8 << 20;

fn main() -> ExitCode {
    memory::heed_limit();
    if !hodo_record::has_small_stack() {
        return run_all();
    }
    // Signals are meant for the thread that does the work. It waits for them where they must not end it. This thread
    // would be ended by them.
    let before = block_signals();
    // A new thread gets a stack of the size we ask for.
    let thread = std::thread::Builder::new()
        .stack_size(STACK)
        .spawn(move || {
            // SAFETY: the call only reads the set.
            unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut())
            };
            run_all()
        });
    match thread {
        Ok(thread) => thread.join().unwrap_or(ExitCode::from(101)),
        Err(error) => {
            warn_user!(
                "hodo: the stack is too small (ulimit -s), and no thread with a larger one can be started: {error}"
            );
            ExitCode::from(125)
        }
    }
}

/// Blocks all signals in this thread. Returns the signals that were blocked before.
fn block_signals() -> libc::sigset_t {
    // SAFETY: a set of signals is plain data, and the calls write only the sets that they are given.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    }
}

fn run_all() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let (cli, matches) = match parse(words.clone()) {
        Ok(parsed) => parsed,
        Err(error) => return usage(&error, words),
    };
    debuginfod::enable();
    let order = matches.subcommand().map(|(_, matches)| Order::of(matches));
    let named = matches.subcommand().is_some_and(|(name, matches)| {
        matches!(name, "live" | "probe" | "syscalls")
            && matches.value_source("data") == Some(ValueSource::CommandLine)
    });
    match dispatch(cli, &order.unwrap_or_default(), named) {
        Ok(code) => code,
        // The reader of our output has seen enough.
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&error);
            ExitCode::FAILURE
        }
    }
}

fn parse(words: Vec<OsString>) -> Result<(Cli, ArgMatches), clap::Error> {
    let (cli, words) = argv::with_command(words)?;
    let matches = cli.try_get_matches_from(words)?;
    let cli = Cli::from_arg_matches(&matches)?;
    if let Some((name, matches)) = matches.subcommand() {
        uftrace::check_patterns(matches)?;
        if name != "detach" {
            check_processes(matches)?;
        }
    }
    Ok((cli, matches))
}

/// Refuses several processes where one is observed.
///
/// # Errors
/// If `--pid` of a command that takes one process is there more than once.
fn check_processes(matches: &ArgMatches) -> Result<(), clap::Error> {
    // A tool of `hodo mem` has the option itself.
    let matches = matches.subcommand().map_or(matches, |(_, tool)| tool);
    let pids = matches.try_get_many::<i32>("pid").ok().flatten();
    match pids.map_or(0, |pids| pids.len()) {
        0 | 1 => Ok(()),
        count => Err(clap::Error::raw(
            ErrorKind::TooManyValues,
            format!(
                "--pid is there {count} times: hodo attaches to one process. Start it once for each, with its own \
                 --data if it writes a trace\n"
            ),
        )),
    }
}

/// Prints help, the version, or an error in the command line.
fn usage(error: &clap::Error, words: Vec<OsString>) -> ExitCode {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        // The error does not matter if nobody reads the text.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.to_string();
    let words = argv::with_command(words).map_or_else(|_| Vec::new(), |(_, words)| words);
    let command = words.get(1).and_then(|word| word.to_str());
    if let Some(tip) = uftrace::tip(&Cli::command(), command, error) {
        // The first line names the option. The rest of clap's text does not apply.
        let line = text.lines().next().unwrap_or_default();
        let line = line.strip_prefix("error: ").unwrap_or(line);
        warn_user!("hodo: {line}\n\n  tip: {tip}\n\nFor more information, try '--help'.");
        return ExitCode::from(2);
    }
    let _ = match text.strip_prefix("error: ") {
        Some(text) => write!(std::io::stderr(), "hodo: {text}"),
        None => write!(std::io::stderr(), "{text}"),
    };
    ExitCode::from(2)
}

/// Runs the command. `named`: the command line names the trace directory.
fn dispatch(cli: Cli, order: &Order, named: bool) -> Result<ExitCode> {
    if let Some(path) = cli.command.logfile() {
        hodo_record::messages_to(path)?;
    }
    match cli.command {
        Command::Record(args) => Ok(run::record(&args.common, &args.recording, order)),
        Command::Live(args) => Ok(run::live(&args, order, named)),
        Command::Replay(args) => view::replay(&args, order),
        Command::Report(args) => view::report(&args, order),
        Command::Graph(args) => view::graph(args, order),
        Command::Dump(args) => view::dump(&args, order),
        Command::Info(args) => view::info(args),
        Command::Probe(args) if args.inspect.dry_run => inspect::dry_run(&args),
        Command::Probe(args) if args.inspect.usdt => inspect::usdt(&args),
        Command::Probe(args) if args.inspect.list => inspect::list(&args),
        Command::Probe(args) if args.inspect.list_armed => inspect::armed(&args),
        Command::Probe(args) => Ok(run::probe(&args, named)),
        Command::Syscalls(args) => Ok(syscalls::syscalls(&args, named)),
        Command::Mem(args) => mem::mem(&args),
        Command::Keys(args) => keys::keys(&args),
        Command::ListEvents(args) => events::list(&args),
        Command::Plan(args) => plan::plan(&args),
        Command::Detach(args) => detach::detach(&args),
        Command::Cache { action } => cache::cache(action),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "hodo", &mut script);
            output::stdout().write_all(&script)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Manpages { directory } => {
            let command = Cli::command().disable_help_subcommand(true);
            std::fs::create_dir_all(&directory)
                .and_then(|()| clap_mangen::generate_to(command, &directory))
                .with_context(|| format!("writing manual pages into {}", directory.display()))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<(Cli, ArgMatches), clap::Error> {
        parse(text.split(' ').map(OsString::from).collect())
    }

    fn record(text: &str) -> args::RecordArgs {
        match parsed(text).unwrap().0.command {
            Command::Record(args) => args,
            other => panic!("{other:?}"),
        }
    }

    /// The words for an option, with a value that it takes. `None`: it has no name.
    fn spelled(option: &clap::Arg) -> Option<Vec<String>> {
        let name = match (option.get_long(), option.get_short()) {
            (Some(long), _) => format!("--{long}"),
            (None, Some(letter)) => format!("-{letter}"),
            (None, None) => return None,
        };
        if !option.get_action().takes_values() {
            return Some(vec![name]);
        }
        let known = option.get_possible_values();
        let values = known.iter().map(clap::builder::PossibleValue::get_name);
        // One of these is right for each option.
        let values = values.chain(["1", "x", "1us", "1~2", "1K,2,64", "64", "a=malloc"]);
        let takes = |value: &&str| {
            let parsed = alone(option).try_get_matches_from(["it", &format!("--it={value}")]);
            parsed.is_ok()
        };
        let value = values.into_iter().find(takes).unwrap_or("1").to_owned();
        Some(vec![name, value])
    }

    /// A command line with such an option, `--it`.
    fn alone(option: &clap::Arg) -> clap::Command {
        let option = clap::Arg::new("it")
            .long("it")
            .action(option.get_action().clone())
            .value_parser(option.get_value_parser().clone());
        clap::Command::new("it")
            .args_override_self(true)
            .arg(option)
    }

    /// All commands, those of `hodo mem` included: how each is called, and what it takes.
    fn commands() -> Vec<(Vec<String>, clap::Command)> {
        let mut all = Vec::new();
        for command in Cli::command().get_subcommands() {
            let name = command.get_name().to_owned();
            let tools: Vec<_> = command.get_subcommands().collect();
            for tool in &tools {
                let names = vec![name.clone(), tool.get_name().to_owned()];
                all.push((names, (*tool).clone()));
            }
            if tools.is_empty() {
                all.push((vec![name], command.clone()));
            }
        }
        all
    }

    /// Each option of some command, given to each command: it is one of this command's, or of all that uftrace has,
    /// or an error.
    #[test]
    fn no_command_takes_an_option_that_it_does_not_have() {
        let commands = commands();
        let is_same = |one: &clap::Arg, other: &clap::Arg| match (one.get_long(), one.get_short()) {
            (Some(long), _) => {
                let aliases = other.get_all_aliases().unwrap_or_default();
                other.get_long() == Some(long) || aliases.contains(&long)
            }
            (None, letter) => other.get_short() == letter,
        };
        let mut tried = std::collections::BTreeSet::new();
        for (names, command) in &commands {
            for option in commands.iter().flat_map(|(_, other)| other.get_arguments()) {
                let Some(words) = spelled(option) else {
                    continue;
                };
                let own = command.get_arguments().any(|own| is_same(option, own));
                if own || !tried.insert((names, words[0].clone())) {
                    continue;
                }
                let line = ["hodo"].into_iter().chain(names.iter().map(String::as_str));
                let line: Vec<&str> = line.chain(words.iter().map(String::as_str)).collect();
                let accepted = uftrace::accepts(&names[0], &words[0]);
                match parse(line.iter().map(OsString::from).collect()) {
                    Err(error) if error.kind() == ErrorKind::UnknownArgument => {
                        assert!(!accepted, "{line:?}");
                        assert!(error.to_string().contains(&words[0]), "{line:?}: {error}");
                    }
                    other => assert!(accepted, "{line:?}: {:?}", other.err()),
                }
            }
        }
        assert!(tried.len() > 1000, "{}", tried.len());
    }

    /// Each option twice: both values are there, or the last, or it is an error.
    #[test]
    fn no_option_is_lost_if_it_is_given_twice() {
        let mut seen = 0;
        for (names, command) in commands() {
            for option in command.get_arguments() {
                let Some(words) = spelled(option) else {
                    continue;
                };
                let once = ["--it"].into_iter();
                let once = once.chain(words[1..].iter().map(String::as_str));
                let twice: Vec<&str> = (["it"].into_iter())
                    .chain(once.clone())
                    .chain(once)
                    .collect();
                let Ok(matches) = alone(option).try_get_matches_from(twice) else {
                    continue;
                };
                seen += 1;
                let (one, all) = match option.get_action() {
                    clap::ArgAction::Count => (2, usize::from(matches.get_count("it"))),
                    clap::ArgAction::Append => {
                        (2, matches.get_raw("it").map_or(0, |values| values.len()))
                    }
                    _ => (1, 1),
                };
                assert_eq!(one, all, "{names:?} {words:?}");
                // What may be wanted several times is a list.
                let is_list = matches!(option.get_action(), clap::ArgAction::Append);
                let many = [
                    "filter", "notrace", "patch", "unpatch", "hide", "probe", "event", "pid",
                ];
                let wanted = option.get_long().is_some_and(|long| many.contains(&long));
                assert!(is_list || !wanted, "{names:?} {words:?} takes one value");
            }
        }
        assert!(seen > 200, "{seen}");
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_after_the_program_are_the_programs() {
        let args = record("hodo record -D 3 -t 1ms ls -D 5 --json");
        assert_eq!(args.recording.command, ["ls", "-D", "5", "--json"]);
        assert_eq!(args.common.depth, Some(3));
        assert_eq!(args.common.time_filter, Some(1_000_000));
        let args = record("hodo record -- ls --help -- -V");
        assert_eq!(args.recording.command, ["ls", "--help", "--", "-V"]);
        let args = record("hodo record ls record -V");
        assert_eq!(args.recording.command, ["ls", "record", "-V"]);
    }

    #[test]
    fn wrong_values_are_refused() {
        for text in [
            "hodo record",
            "hodo record -D 0 ls",
            "hodo record -D -1 ls",
            "hodo record -t soon ls",
            "hodo record -Z big ls",
            "hodo record --match=perl ls",
            "hodo record --clock=sun ls",
            "hodo record --frobnicate ls",
            "hodo replay -r 5",
            "hodo dump --chrome --svg",
            "hodo report --format=xml",
            "hodo plan",
        ] {
            let error = parsed(text).expect_err(text);
            assert_eq!(error.exit_code(), 2, "{text}");
        }
    }

    #[test]
    fn values_have_units() {
        let ns = |text: &str| {
            record(&format!("hodo record -t {text} ls"))
                .common
                .time_filter
        };
        assert_eq!(ns("1500"), Some(1500));
        assert_eq!(ns("10us"), Some(10_000));
        assert_eq!(ns("2ms"), Some(2_000_000));
        assert_eq!(ns("1s"), Some(1_000_000_000));
        let size = |text: &str| {
            record(&format!("hodo record -Z {text} ls"))
                .common
                .size_filter
        };
        assert_eq!([size("64"), size("0x40"), size("4k")], [64, 64, 4096]);
    }

    #[test]
    fn the_last_of_repeated_options_counts() {
        let args = record("hodo record -D 3 --depth=5 --color=yes --color=no ls");
        assert_eq!(args.common.depth, Some(5));
        assert_eq!(args.common.screen.color, args::ColorArg::No);
    }

    #[test]
    fn patches_keep_their_order() {
        let (_, matches) =
            parsed("hodo record -P . -U b --patch=c@libc.so.6 --unpatch d -P e ls").unwrap();
        let order = Order::of(matches.subcommand().unwrap().1);
        let order: Vec<_> = (order.patch)
            .iter()
            .map(|(on, name)| (*on, name.as_str()))
            .collect();
        let expected = [
            (true, "."),
            (false, "b"),
            (true, "c@libc.so.6"),
            (false, "d"),
            (true, "e"),
        ];
        assert_eq!(order, expected);
    }

    #[test]
    fn a_trailing_slash_is_not_part_of_the_trace_directory() {
        let args = record("hodo record -d some/where/ ls");
        assert_eq!(args.common.place.data.as_os_str(), "some/where");
    }
}
