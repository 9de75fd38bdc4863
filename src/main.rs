//! Parses, calls the command line, maps the result to an exit status.

use std::process::ExitCode;

fn main() -> ExitCode {
    ringload::cli::main(std::env::args_os())
}
