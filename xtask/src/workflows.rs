//! The workflows of `.github` call chores that exist, and nothing else.

use std::{fs, path::Path};

use serde_json::Value;

use crate::{CHORES, jobs::MSRV};

/// The command that a workflow may run beside chores: it installs Rust.
const TOOLCHAIN: &str = "rustup toolchain install ";
/// A step that runs the chore of its row in the matrix.
const OF_THE_ROW: &str = "cargo xtask ${{ matrix.chore }}";

/// Lists the faults of a workflow.
fn complaints(text: &str) -> Vec<String> {
    let workflow: Value = match serde_yaml_ng::from_str(text) {
        Ok(workflow) => workflow,
        Err(error) => return vec![error.to_string()],
    };
    let mut complaints = Vec::new();
    let mut chores = Vec::new();
    for (job, content) in workflow["jobs"].as_object().into_iter().flatten() {
        for row in content["strategy"]["matrix"]["include"]
            .as_array()
            .into_iter()
            .flatten()
        {
            chores.push(row["chore"].as_str().unwrap_or_default());
            if row["chore"] == "msrv" && row["toolchain"] != MSRV {
                complaints.push(format!(
                    "{job}: msrv runs with {}, not with {MSRV}",
                    row["toolchain"]
                ));
            }
        }
        let steps = content["steps"].as_array().into_iter().flatten();
        for run in steps
            .filter_map(|step| step["run"].as_str())
            .filter(|run| *run != OF_THE_ROW)
        {
            match run.strip_prefix("cargo xtask ") {
                Some(chore) => chores.push(chore),
                None if run.starts_with(TOOLCHAIN) => {}
                None => complaints.push(format!("{job}: runs more than a chore: {run}")),
            }
        }
    }
    if chores.is_empty() {
        complaints.push("runs no chore".into());
    }
    let exists = |chore: &str| {
        CHORES
            .iter()
            .any(|(name, ..)| chore.split(' ').next() == Some(name))
    };
    let unknown = chores.into_iter().filter(|chore| !exists(chore));
    complaints.extend(unknown.map(|chore| format!("no such chore: {chore:?}")));
    complaints
}

#[test]
fn workflows_call_chores_and_nothing_else() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.github/workflows");
    let files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(!files.is_empty());
    for file in files {
        assert_eq!(
            complaints(&fs::read_to_string(&file).unwrap()),
            [""; 0],
            "{}",
            file.display()
        );
    }
}

#[test]
fn what_is_wrong_is_found() {
    let row =
        format!("strategy: {{matrix: {{include: [{{chore: msrv, toolchain: \"{MSRV}\"}}]}}}}");
    let job = |rest: &str| complaints(&format!("jobs:\n  a: {{{rest}}}\n"));
    assert_eq!(job("steps: [{run: cargo xtask lint}]"), [""; 0]);
    assert_eq!(job("steps: [{run: cargo xtask bench --quick}]"), [""; 0]);
    assert_eq!(
        job("steps: [{run: cargo xtask polish}]"),
        ["no such chore: \"polish\""]
    );
    assert_eq!(
        job("steps: [{run: cargo xtask lint}, {run: make}]"),
        ["a: runs more than a chore: make"]
    );
    assert_eq!(job("steps: [{uses: checkout}]"), ["runs no chore"]);
    assert_eq!(job(&row), [""; 0]);
    assert_eq!(job(&row.replace(MSRV, "1.0")).len(), 1);
    assert_eq!(complaints("jobs: [").len(), 1, "no YAML");
}
