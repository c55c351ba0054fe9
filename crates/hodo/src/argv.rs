//! Finds the command among the words of the command line, before they are parsed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::error::ErrorKind;
use clap::{ArgAction, Command, CommandFactory};

use crate::args::Cli;
use crate::{run, uftrace};

/// Commands of other tools that a user may look for here, and what does their job. Whoever wants to run a program of
/// such a name says so by `--`.
const ELSEWHERE: [(&str, &str); 12] = [
    (
        "annotate",
        "hodo mem cache --instructions shows what instructions cost",
    ),
    ("attach", "hodo record -p PID attaches to a process"),
    (
        "diff",
        "hodo report --format=json of both traces gives two files to compare",
    ),
    (
        "list",
        "hodo list-events, hodo probe --list and hodo plan show what can be observed",
    ),
    ("opcodes", "hodo mem opcodes counts instructions"),
    (
        "run",
        "hodo record PROGRAM records its calls, hodo PROGRAM shows them",
    ),
    (
        "stat",
        "hodo mem stat counts instructions, loads and stores",
    ),
    ("tlb", "hodo mem tlb simulates caches of translations"),
    (
        "top",
        "hodo report shows where the time of a recording went",
    ),
    (
        "trace",
        "hodo record records calls, hodo syscalls shows system calls",
    ),
    ("view", "hodo mem view shows accesses of memory"),
    (
        "watch",
        "hodo probe shows each execution of an instruction, with values",
    ),
];

/// Returns an error if a word is no program to run, but a command of another tool, or a misspelt one of hodo.
fn no_program(cli: &Command, word: &str) -> Option<clap::Error> {
    let error = |text: String| clap::Error::raw(ErrorKind::InvalidSubcommand, text);
    if let Some(missing) = uftrace::missing_command(word) {
        return Some(missing);
    }
    if let Some((_, instead)) = ELSEWHERE.iter().find(|(name, _)| *name == word) {
        return Some(error(format!(
            "'{word}' is no command of hodo: {instead}. hodo -- {word} runs a program of that name\n"
        )));
    }
    let candidates = run::candidates(OsStr::new(word));
    if word.contains('/') || candidates.iter().any(|path| path.exists()) {
        return None;
    }
    let names = cli.get_subcommands().map(Command::get_name);
    let near = hodo_probe_compile::near(word, names);
    let near = near.first()?;
    Some(error(format!(
        "'{word}' is neither a command of hodo nor a program in PATH or in the current directory: hodo {near} may be meant\n"
    )))
}

/// Returns whether an option takes a value, or `None` if no command has the option.
fn wants_value(cli: &Command, is: impl Fn(&clap::Arg) -> bool) -> Option<bool> {
    cli.get_subcommands()
        .flat_map(Command::get_arguments)
        .find(|arg| is(arg))
        .map(|arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append))
}

/// Returns how many words an option takes, including itself.
fn length(cli: &Command, word: &[u8]) -> usize {
    if let Some(name) = word.strip_prefix(b"--") {
        let is = |arg: &clap::Arg| {
            let mut names = arg.get_long_and_visible_aliases().into_iter().flatten();
            names.any(|long| long.as_bytes() == name)
        };
        return 1 + usize::from(wants_value(cli, is) == Some(true));
    }
    // `-vD3`: the first letter that takes a value takes the rest of the word, or the next word.
    for (at, &letter) in word.iter().enumerate().skip(1) {
        let is = |arg: &clap::Arg| arg.get_short() == Some(letter.into());
        if wants_value(cli, is) == Some(true) {
            return 1 + usize::from(at + 1 == word.len());
        }
    }
    1
}

/// Moves the command to the front. The first word that is neither an option nor an option's value is the command. If
/// there is no such command, it is a program: `hodo PROGRAM` means `hodo live PROGRAM`. Returns the command line that
/// parses the words, too: building it takes a millisecond.
///
/// # Errors
/// If it is a command of another tool that hodo does not have, or a misspelt one.
pub fn with_command(mut words: Vec<OsString>) -> Result<(Command, Vec<OsString>), clap::Error> {
    let cli = Cli::command();
    let first = words.get(1).and_then(|word| word.to_str());
    if let Some(first) = first
        && cli.get_subcommands().any(|c| c.get_name() == first)
    {
        return Ok((uftrace::extended_for(cli, first), words));
    }
    let mut cli = uftrace::extended(cli);
    cli.build();
    let is_command = |word: &OsStr| cli.get_subcommands().any(|c| word == c.get_name());
    let mut at = 1;
    while let Some(word) = words.get(at) {
        match word.as_bytes() {
            b"--" => break,
            b"-h" | b"--help" | b"-V" | b"--version" if at == 1 => return Ok((cli, words)),
            option if option.len() > 1 && option[0] == b'-' => at += length(&cli, option),
            _ if is_command(word) => {
                let command = words.remove(at);
                words.insert(1, command);
                return Ok((cli, words));
            }
            name => match std::str::from_utf8(name)
                .ok()
                .and_then(|word| no_program(&cli, word))
            {
                Some(error) => return Err(error),
                None => break,
            },
        }
    }
    if words.len() > 1 {
        words.insert(1, "live".into());
    }
    Ok((cli, words))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let words = |text: &str| -> Vec<OsString> { text.split(' ').map(OsString::from).collect() };
        assert_eq!(with_command(words(text)).unwrap().1, words(expected));
    }

    #[test]
    fn a_program_alone_is_live() {
        check("hodo ls -l", "hodo live ls -l");
        check("hodo -F main ls", "hodo live -F main ls");
        check(
            "hodo --depth 3 -vt 1us ls record",
            "hodo live --depth 3 -vt 1us ls record",
        );
        check("hodo -D3 ls report", "hodo live -D3 ls report");
        check("hodo -- report", "hodo live -- report");
        check("hodo --report ls", "hodo live --report ls");
    }

    #[test]
    fn commands_of_other_tools_and_misspelt_ones_are_not_taken_for_programs() {
        for text in [
            "hodo tui",
            "hodo -d x script -S y",
            "hodo recv",
            "hodo map",
            "hodo diff a b",
            "hodo -v top",
            "hodo recrod ls",
            "hodo -d x reprot",
        ] {
            let words = text.split(' ').map(OsString::from).collect();
            let error = with_command(words).expect_err(text);
            assert_eq!(error.exit_code(), 2);
        }
        check("hodo -- tui", "hodo live -- tui");
        check("hodo -- recrod", "hodo live -- recrod");
        check("hodo ./diff", "hodo live ./diff");
        check(
            "hodo no-such-program-at-all",
            "hodo live no-such-program-at-all",
        );
        check("hodo record tui", "hodo record tui");
        check("hodo ./tui", "hodo live ./tui");
        // The value of an option that only other commands have.
        check("hodo -s tui report", "hodo report -s tui");
    }

    #[test]
    fn options_may_stand_before_the_command() {
        check("hodo record ls", "hodo record ls");
        check("hodo -D 3 record ls", "hodo record -D 3 ls");
        check("hodo -d x -s self report", "hodo report -d x -s self");
        check("hodo --data=x report", "hodo report --data=x");
        // The value of an option is not a command.
        check("hodo -F report ls", "hodo live -F report ls");
        check("hodo -d report replay", "hodo replay -d report");
    }

    #[test]
    fn help_and_version_need_no_command() {
        check("hodo --help", "hodo --help");
        check("hodo -V", "hodo -V");
        check("hodo help record", "hodo help record");
        check("hodo", "hodo");
    }
}
