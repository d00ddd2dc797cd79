//! Manual pages and completions, made from the command line's own description.

use std::io::{self, Write};
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Args;
use crate::exit::{self, Exit};
use crate::output;

/// The words after `--` belong to another program. They are completed as its name, by its own
/// completions if there are any, or as files.
const BASH: &str = r#"
_leasehold_or_program() {
    local i
    for ((i = 1; i < COMP_CWORD; i++)); do
        [[ ${COMP_WORDS[i]} == -- ]] || continue
        local current=${COMP_WORDS[COMP_CWORD]}
        if declare -F _command_offset > /dev/null; then
            _command_offset $((i + 1))
        elif ((COMP_CWORD == i + 1)) && [[ $current != */* ]]; then
            mapfile -t COMPREPLY < <(compgen -c -- "$current")
        else
            compopt -o filenames 2> /dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$current")
        fi
        return
    done
    _leasehold "$@"
}

complete -F _leasehold_or_program -o bashdefault -o default leasehold
"#;
const FISH: &str = "
complete -c leasehold -n 'contains -- -- (commandline -opc)' -F
complete -c leasehold -n 'contains -- -- (commandline -opc); and test (commandline -opc)[-1] = --' -a '(__fish_complete_command)'
";

pub(crate) fn completions(shell: Shell) -> io::Result<Exit> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "leasehold", &mut text);
    match shell {
        Shell::Bash => text.extend_from_slice(BASH.as_bytes()),
        Shell::Fish => text.extend_from_slice(FISH.as_bytes()),
        _ => {}
    }
    shown(text)
}

/// Prints the page of the whole program or of one command, or writes all pages into a folder.
pub(crate) fn pages(of: Option<&Path>) -> io::Result<Exit> {
    let mut whole = Args::command().disable_help_subcommand(true);
    whole.build();
    let Some(of) = of else {
        return shown(page(&whole)?);
    };
    if let Some(command) = of.to_str().and_then(|name| whole.find_subcommand(name)) {
        return shown(page(command)?);
    }
    if !of.is_dir() {
        return Ok(exit::bad_usage(format_args!(
            "{}: neither a command nor an existing folder",
            of.display()
        )));
    }
    for command in std::iter::once(&whole).chain(whole.get_subcommands()) {
        let file = of.join(Man::new(command.clone()).get_filename());
        std::fs::write(file, page(command)?)?;
    }
    Ok(Exit::Code(0))
}

/// One page. The synopsis is the command's own usage, and the text at the end of `--help` keeps its
/// lines.
fn page(command: &Command) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let man = Man::new(command.clone());
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim();
    writeln!(text, ".SH SYNOPSIS\n.nf\n{}\n.fi", roff(usage))?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    if let Some(more) = command
        .get_after_long_help()
        .or_else(|| command.get_after_help())
    {
        writeln!(text, ".SH NOTES\n.nf\n{}\n.fi", roff(&more.to_string()))?;
    }
    Ok(text)
}

/// Escapes the text so that no line of it is a request to the formatter.
fn roff(text: &str) -> String {
    let lines = text
        .lines()
        .map(|line| format!("\\&{}", line.replace('\\', "\\e").replace('-', "\\-")));
    lines.collect::<Vec<_>>().join("\n")
}

fn shown(text: Vec<u8>) -> io::Result<Exit> {
    output::print(&String::from_utf8(text).map_err(io::Error::other)?)?;
    Ok(Exit::Code(0))
}
