//! The `hodo` command.

mod args;
mod output;
mod plan;
mod run;
mod view;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context, Result};
use args::{Cli, Command};
use clap::{CommandFactory, FromArgMatches};

fn main() -> ExitCode {
    let matches = Cli::command().get_matches_from(with_command(std::env::args_os().collect()));
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let order = matches
        .subcommand()
        .map(|(_, matches)| run::patch_order(matches));
    match dispatch(cli, &order.unwrap_or_default()) {
        Ok(code) => code,
        // Whoever reads our output has seen enough.
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hodo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// `hodo PROGRAM` is `hodo live PROGRAM`.
fn with_command(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let known = |word: &OsString| {
        ["-h", "--help", "-V", "--version"]
            .iter()
            .any(|w| word == w)
            || Cli::command()
                .get_subcommands()
                .any(|c| word == c.get_name())
    };
    if arguments.get(1).is_some_and(|first| !known(first)) {
        arguments.insert(1, "live".into());
    }
    arguments
}

fn dispatch(cli: Cli, order: &[run::Patch]) -> Result<ExitCode> {
    match cli.command {
        Command::Record(args) => run::record(&args.common, &args.recording, order),
        Command::Live(args) => run::live(&args, order),
        Command::Replay(args) => view::replay(&args.reading, &args.style),
        Command::Report(args) => view::report(&args),
        Command::Graph(args) => view::graph(args),
        Command::Dump(args) => view::dump(&args),
        Command::Info(args) => view::info(args),
        Command::Plan(args) => plan::plan(&args),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "hodo", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
        Command::Man { directory } => {
            std::fs::create_dir_all(&directory)
                .and_then(|()| clap_mangen::generate_to(Cli::command(), &directory))
                .with_context(|| format!("writing manual pages into {}", directory.display()))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_program_alone_is_live() {
        let words = |text: &str| -> Vec<OsString> { text.split(' ').map(OsString::from).collect() };
        assert_eq!(with_command(words("hodo ls -l")), words("hodo live ls -l"));
        assert_eq!(
            with_command(words("hodo -F x ls")),
            words("hodo live -F x ls")
        );
        assert_eq!(
            with_command(words("hodo record ls")),
            words("hodo record ls")
        );
        assert_eq!(with_command(words("hodo --help")), words("hodo --help"));
        assert_eq!(with_command(vec!["hodo".into()]), ["hodo"]);
    }

    #[test]
    fn options_behind_the_program_are_the_programs() {
        let parse = |text: &str| {
            Cli::try_parse_from(with_command(text.split(' ').map(OsString::from).collect()))
        };
        use clap::Parser;
        let cli = parse("hodo record -D 3 -t 1ms ls -D 5 --json").unwrap();
        let Command::Record(args) = cli.command else {
            panic!("not record")
        };
        assert_eq!(args.recording.command, ["ls", "-D", "5", "--json"]);
        assert_eq!(args.common.depth, Some(3));
        assert_eq!(args.common.time_filter, Some(1_000_000));
        let cli = parse("hodo record -- ls --help").unwrap();
        let Command::Record(args) = cli.command else {
            panic!("not record")
        };
        assert_eq!(args.recording.command, ["ls", "--help"]);
        assert!(parse("hodo record -D 0 ls").is_err());
        assert!(parse("hodo record -t soon ls").is_err());
        assert!(parse("hodo record").is_err());
    }
}
