//! Manual pages and completions, made from the command line's own description.

use std::io::{self, Write, stdout};
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Args;
use crate::exit::Exit;

pub(crate) fn completions(shell: Shell) -> io::Result<Exit> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "leasehold", &mut text);
    stdout().write_all(&text)?;
    Ok(Exit::Code(0))
}

pub(crate) fn pages(folder: Option<&Path>) -> io::Result<Exit> {
    match folder {
        Some(folder) => clap_mangen::generate_to(Args::command(), folder)?,
        None => clap_mangen::Man::new(Args::command()).render(&mut stdout())?,
    }
    Ok(Exit::Code(0))
}
