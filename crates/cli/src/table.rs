//! Tables for people.

use std::fmt::Write;

use crate::output;

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
        self.rows.push(cells.map(|cell| output::plain(&cell)));
    }

    /// The table, with its heading in bold if asked for.
    pub(crate) fn text(&self, bold: bool) -> String {
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..N).map(width).collect();
        let mut text = String::new();
        for (at, row) in self.rows.iter().enumerate() {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            let cells = cells.collect::<Vec<_>>().join("  ");
            let (on, off) = if bold && at == 0 { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
            let _ = writeln!(text, "{on}{}{off}", cells.trim_end());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other_and_nothing_moves_the_cursor() {
        let mut table = Table::new(["A", "B"]);
        table.row(["long cell".into(), "x".into()]);
        table.row(["\x1b[2J".into(), "y".into()]);
        assert_eq!(table.text(false), "A          B\nlong cell  x\n\u{FFFD}[2J       y\n");
        assert!(table.text(true).starts_with("\x1b[1mA          B\x1b[0m\nlong"));
    }
}
