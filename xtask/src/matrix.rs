//! The results of the conformance runs, store by store: the table in `docs/guarantees.md` must
//! contain them.

use std::fs;

use crate::run::Outcome;

const PAGE: &str = "docs/guarantees.md";

/// The rows that suites have printed.
#[derive(Debug, Default)]
pub(crate) struct Matrix(Vec<String>);

impl Matrix {
    /// Takes up a line such as `matrix: | redis | ✓ | … |`.
    pub(crate) fn add(&mut self, line: &str) {
        let Some(row) = line.trim_end().strip_prefix("matrix: ") else {
            return;
        };
        if !self.0.iter().any(|known| known == row) {
            self.0.push(row.to_owned());
        }
    }

    /// Prints the table and compares it with the page.
    pub(crate) fn judge(&self) -> Outcome {
        println!("\n==== the matrix");
        self.0.iter().for_each(|row| println!("{row}"));
        let page = fs::read_to_string(PAGE).map_err(|error| format!("reading {PAGE}: {error}"))?;
        let lacking = self.lacking(&page);
        if lacking.is_empty() {
            Ok(())
        } else {
            Err(format!(
                "{PAGE} lacks what was proved:\n{}",
                lacking.join("\n")
            ))
        }
    }

    fn lacking<'a>(&'a self, page: &str) -> Vec<&'a str> {
        self.0
            .iter()
            .map(String::as_str)
            .filter(|row| !page.lines().any(|line| line == *row))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_must_have_each_row_once_printed() {
        let mut matrix = Matrix::default();
        for line in [
            "matrix: | | a |\n",
            "matrix: | x | ✓ |\n",
            "test a ... ok\n",
            "matrix: | x | ✓ |\n",
        ] {
            matrix.add(line);
        }
        assert_eq!(matrix.0, ["| | a |", "| x | ✓ |"]);
        assert!(
            matrix
                .lacking("text\n| | a |\n|---|---|\n| x | ✓ |\n")
                .is_empty()
        );
        assert_eq!(matrix.lacking("| | a |\n| x | – |\n"), ["| x | ✓ |"]);
    }
}
