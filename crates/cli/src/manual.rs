//! Manual pages and completions, made from the command line's own description.

use std::io;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Args;
use crate::exit::{self, Exit};
use crate::output;

pub(crate) fn completions(shell: Shell) -> io::Result<Exit> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "leasehold", &mut text);
    shown(text)
}

pub(crate) fn pages(folder: Option<&Path>) -> io::Result<Exit> {
    let Some(folder) = folder else {
        let mut text = Vec::new();
        clap_mangen::Man::new(Args::command()).render(&mut text)?;
        return shown(text);
    };
    if !folder.is_dir() {
        return Ok(exit::bad_usage(format_args!("{}: there is no such folder", folder.display())));
    }
    clap_mangen::generate_to(Args::command(), folder)?;
    Ok(Exit::Code(0))
}

fn shown(text: Vec<u8>) -> io::Result<Exit> {
    output::print(&String::from_utf8(text).map_err(io::Error::other)?)?;
    Ok(Exit::Code(0))
}
