//! Tables for people and JSON for programs, on standard output.

use std::io::{IsTerminal, Write, stdout};

use serde_json::Value;

/// Columns as wide as they must be, and a heading.
#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(heading: [&str; N]) -> Table<N> {
        Table { rows: vec![heading.map(String::from)] }
    }

    pub(crate) fn row(&mut self, cells: [String; N]) {
        // What others wrote must not move the cursor.
        self.rows.push(cells.map(|cell| cell.chars().map(|c| if c.is_control() { '\u{FFFD}' } else { c }).collect()));
    }

    pub(crate) fn print(&self) {
        let bold = stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let mut text = String::new();
        for (at, line) in self.lines().enumerate() {
            text.push_str(&if bold && at == 0 { format!("\x1b[1m{line}\x1b[0m\n") } else { format!("{line}\n") });
        }
        // Whoever closes the pipe has read enough.
        let _ = stdout().write_all(text.as_bytes());
    }

    fn lines(&self) -> impl Iterator<Item = String> {
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..N).map(width).collect();
        self.rows.iter().map(move |row| {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        })
    }
}

/// One document.
pub(crate) fn json(value: &Value) {
    let _ = writeln!(stdout(), "{value:#}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other_and_nothing_moves_the_cursor() {
        let mut table = Table::new(["A", "B"]);
        table.row(["long cell".into(), "x".into()]);
        table.row(["\x1b[2J".into(), "y".into()]);
        let lines: Vec<String> = table.lines().collect();
        assert_eq!(lines, ["A          B", "long cell  x", "\u{FFFD}[2J       y"]);
    }
}
