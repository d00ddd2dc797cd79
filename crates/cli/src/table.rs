//! Tables for people.

use comfy_table::presets::NOTHING;

use crate::output;

/// A heading, and columns as wide as they must be. No cell moves the cursor.
#[derive(Debug)]
pub(crate) struct Table(comfy_table::Table);

impl Table {
    pub(crate) fn new<const N: usize>(heading: [&str; N]) -> Table {
        let mut table = comfy_table::Table::new();
        table.load_style(NOTHING).set_header(heading);
        Table(table)
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.0.add_row(cells.map(|cell| output::plain(&cell)));
    }

    /// The table, with its heading in bold if asked for.
    pub(crate) fn text(mut self, bold: bool) -> String {
        for column in self.0.column_iter_mut() {
            column.set_padding((0, 2));
        }
        let mut text = self.0.trim_fmt() + "\n";
        if let Some(end) = text.find('\n').filter(|_| bold) {
            text.insert_str(end, "\x1b[0m");
            text.insert_str(0, "\x1b[1m");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other_and_nothing_moves_the_cursor() {
        let table = || {
            let mut table = Table::new(["A", "B"]);
            table.row(["long cell".into(), "x".into()]);
            table.row(["\x1b[2J".into(), "y".into()]);
            table
        };
        assert_eq!(
            table().text(false),
            "A          B\nlong cell  x\n\u{FFFD}[2J       y\n"
        );
        assert!(
            table()
                .text(true)
                .starts_with("\x1b[1mA          B\x1b[0m\nlong")
        );
        assert_eq!(Table::new(["A", "B"]).text(false), "A  B\n");
    }
}
