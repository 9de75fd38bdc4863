//! Parses, calls the command line, maps the result to an exit status.

fn main() {}
