//! Layer 7: flags to plan to calls of the layers below. The only layer that prints.

mod bodies;
mod build;
mod cache;
mod calibrate;
mod config;
mod dataset;
mod doctor;
mod export;
pub mod flags;
mod hints;
mod load;
mod net;
mod output;
pub mod plan;
mod progress;
mod report;
mod run;
mod target;
mod terminal;
mod tls;
pub mod url;

use std::{ffi::OsString, process::ExitCode};

use clap::{CommandFactory, FromArgMatches};

use crate::{
    data::{Error, Result},
    sys::signal,
};
use flags::{Cli, Command};

/// Runs the command line to its exit status.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    signal::ignore_file_limit();
    // Before any file is opened: one may be a pipe that nobody writes to.
    if let Err(error) = terminal::watch_signals() {
        terminal::say_error(&error);
        return ExitCode::from(error.exit_code());
    }
    let args: Vec<OsString> = args.into_iter().collect();
    let typed = args;
    let configured = match config::with_config(&typed, &command()) {
        Ok(configured) => configured,
        Err(error) => {
            terminal::say_error(&error);
            return ExitCode::from(error.exit_code());
        }
    };
    let file = configured.file.as_deref();
    let cli = match parse(&configured.args) {
        Ok(cli) => cli,
        Err(error) => return hints::show(&error, &typed, file),
    };
    let mut phases = Vec::with_capacity(configured.phases.len());
    for phase in configured.phases {
        match parse(&phase.args) {
            Ok(Cli { command: Command::Run(flags) }) => {
                phases.push(run::PhaseFlags { name: phase.name, seamless: phase.seamless, flags });
            }
            Ok(_) => unreachable!("a config is put into the arguments of run alone"),
            Err(error) => return hints::show(&error, &typed, file),
        }
    }
    match call(cli.command, &phases) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // Whoever was interrupted in the middle of something does not know by which signal.
            let error = match (error, signal::asked()) {
                (Error::Interrupted, Some(signal::Asked::Terminate)) => Error::Terminated,
                (error, _) => error,
            };
            terminal::say_error(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

/// The whole command, with an environment variable for every flag.
pub fn command() -> clap::Command {
    with_variables(Cli::command())
}

fn with_variables(command: clap::Command) -> clap::Command {
    // The last of a flag wins, so that what is typed goes over what a config file or an alias said.
    let command = command.args_override_self(true).mut_args(|arg| {
        let Some(long) = arg.get_long().filter(|l| !matches!(*l, "help" | "version")) else { return arg };
        let variable = format!("RINGLOAD_{}", long.to_ascii_uppercase().replace('-', "_"));
        let arg = if matches!(arg.get_action(), clap::ArgAction::SetTrue) {
            arg.value_parser(clap::builder::FalseyValueParser::new())
        } else if is_number(&arg) {
            // So that `-n -5` is told what is wrong with -5, and not that there is no flag -5.
            arg.allow_hyphen_values(true)
        } else {
            arg
        };
        // A variable that is set to nothing is as if it were not set: scripts clear one that way.
        if std::env::var_os(&variable).is_some_and(|value| value.is_empty()) {
            return arg;
        }
        arg.env(variable).hide_env(true)
    });
    command.mut_subcommands(with_variables)
}

/// True for a flag whose value is a number, a time, a share or a list of them, and never a word.
fn is_number(arg: &clap::Arg) -> bool {
    let names = arg.get_value_names().unwrap_or_default();
    names.iter().any(|n| {
        matches!(
            n.as_str(),
            "N" | "TIME" | "RPS" | "X" | "USERS" | "P%" | "N|P%" | "TIME|N" | "N|forever" | "SIZE" | "SIZES" | "LIST"
        )
    })
}

fn parse(args: &[OsString]) -> std::result::Result<Cli, clap::Error> {
    let matches = command().try_get_matches_from(args)?;
    Cli::from_arg_matches(&matches)
}

fn call(command: Command, phases: &[run::PhaseFlags]) -> Result<u8> {
    match command {
        Command::Run(flags) => run::run(&flags, phases),
        Command::Build(flags) => build::build(&flags),
        Command::Inspect(flags) => build::inspect(&flags),
        Command::Cache(flags) => cache::cache(&flags),
        Command::Target(flags) => target::target(&flags),
        Command::Calibrate(flags) => calibrate::calibrate(&flags),
        Command::Report(flags) => report::report(&flags),
        Command::Merge(flags) => report::merge(&flags),
        Command::ExportRequests(flags) => export::export(&flags),
        Command::Doctor(flags) => doctor::doctor(&flags),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut self::command(), "ringload", &mut script);
            terminal::bytes(&script)?;
            Ok(0)
        }
        Command::Man => {
            let mut page = Vec::new();
            clap_mangen::Man::new(self::command())
                .render(&mut page)
                .map_err(|e| Error::file("cannot write", std::path::Path::new("manual page"), e))?;
            terminal::bytes(&page)?;
            Ok(0)
        }
    }
}
