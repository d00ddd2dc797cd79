//! The results of a run by primitive: one line of the table in `docs/guarantees.md`.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::case::{CASES, Case};
use crate::harness::{Capabilities, Need};

/// A column: the primitive, the groups of cases behind it, and the needs of it that a store may
/// lack.
type Column = (&'static str, &'static [&'static str], &'static [Need]);

const COLUMNS: [Column; 7] = [
    (
        "`lock`",
        &[
            "exclusion",
            "token",
            "floor",
            "waiting",
            "holding",
            "lease",
            "loss",
            "identity",
            "cancel",
            "names",
            "input",
            "fence",
            "cost",
            "hygiene",
            "scale",
            "runtimes",
        ],
        &[
            Need::Fair,
            Need::OwnEntry,
            Need::MinHold,
            Need::Raise,
            Need::Floor,
        ],
    ),
    (
        "`rw_lock`",
        &["shared", "downgrade", "modes", "programs"],
        &[Need::Fair, Need::Shared, Need::Downgrade],
    ),
    (
        "`semaphore`",
        &["permits", "modes", "programs"],
        &[Need::Fair, Need::Permits],
    ),
    (
        "`election`",
        &["election", "modes", "programs"],
        &[Need::Fair, Need::Values],
    ),
    (
        "`multi_lock`",
        &["multi", "at_once", "modes", "programs"],
        &[Need::Fair, Need::AtomicMulti],
    ),
    (
        "`owner`",
        &["reentry", "programs"],
        &[Need::Fair, Need::Shared],
    ),
    ("`once`", &["once"], &[Need::Once]),
];

/// The cases that ran, each with whether it passed.
#[derive(Default)]
pub(crate) struct Matrix(Mutex<BTreeMap<&'static str, bool>>);

impl Matrix {
    /// A case ran once more, in another variant.
    pub(crate) fn note(&self, case: &'static str, passed: bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *all.entry(case).or_insert(true) &= passed;
    }

    /// Returns whether a case ran.
    pub(crate) fn has(&self, case: &str) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.contains_key(case)
    }

    /// Returns the table's head, this store's row, and the notes below the table: the needs that
    /// the store lacks, with the reasons.
    pub(crate) fn rows(&self, store: &str, capabilities: &Capabilities) -> Vec<String> {
        let head = COLUMNS.map(|(primitive, ..)| primitive).join(" | ");
        let row = COLUMNS
            .each_ref()
            .map(|column| self.cell(column, capabilities))
            .join(" | ");
        let mut rows = vec![format!("| | {head} |"), format!("| {store} | {row} |")];
        rows.extend(
            capabilities
                .shortcomings()
                .map(|(need, why)| format!("- {store} without `{need:?}`: {why}")),
        );
        rows
    }

    /// Returns the text of a cell: `✓` if the cases that ran have passed, `✗` if one has failed,
    /// `–` if none ran. Needs that the store lacks are named.
    fn cell(&self, (_, groups, needs): &Column, capabilities: &Capabilities) -> String {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_here = |case: &&Case| {
            groups
                .iter()
                .any(|group| case.name.starts_with(&format!("{group}/")))
        };
        let verdicts: Vec<bool> = CASES
            .iter()
            .filter(is_here)
            .filter_map(|case| all.get(case.name).copied())
            .collect();
        let failed = verdicts.iter().filter(|passed| !**passed).count();
        if failed > 0 {
            return format!("✗ {failed} failed");
        }
        let missing: Vec<String> = capabilities
            .shortcomings()
            .filter(|(need, _)| needs.contains(need))
            .filter(|(need, _)| {
                !verdicts.is_empty()
                    || CASES
                        .iter()
                        .filter(is_here)
                        .all(|case| case.needs.contains(need))
            })
            .map(|(need, _)| format!("`{need:?}`"))
            .collect();
        match (verdicts.is_empty(), missing.join(", ")) {
            (true, missing) => format!("– without {missing}"),
            (false, missing) if missing.is_empty() => "✓".to_owned(),
            (false, missing) => format!("✓ without {missing}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_proves_something() {
        for case in CASES {
            let group = case.name.split('/').next().unwrap();
            assert!(
                COLUMNS.iter().any(|(_, groups, _)| groups.contains(&group)),
                "{group} is in no column"
            );
        }
    }

    #[test]
    fn a_cell_says_what_was_seen_and_what_is_missing() {
        let lacking = [
            (Need::Permits, "it has no counters"),
            (Need::Fair, "it has no line"),
        ];
        let capabilities = lacking.iter().fold(
            Capabilities::new(&[], "not ours"),
            |capabilities, (need, why)| capabilities.lacks(&[*need], why),
        );
        let matrix = Matrix::default();
        for case in CASES
            .iter()
            .filter(|case| capabilities.lack(case.needs).is_none())
        {
            matrix.note(case.name, true);
        }
        matrix.note("multi/holds_each_of_them", false);
        matrix.note("multi/holds_each_of_them", true);
        let but = "✓ without `Fair`";
        let expected = [
            "| | `lock` | `rw_lock` | `semaphore` | `election` | `multi_lock` | `owner` | `once` |"
                .to_owned(),
            format!("| x | {but} | {but} | – without `Permits` | {but} | ✗ 1 failed | {but} | ✓ |"),
            "- x without `Permits`: it has no counters".to_owned(),
            "- x without `Fair`: it has no line".to_owned(),
        ];
        assert_eq!(matrix.rows("x", &capabilities), expected);
    }
}
