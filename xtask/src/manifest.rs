//! The little that is asked of a `Cargo.toml`: its test targets.

/// What a manifest says about tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) tests: Vec<String>,
    pub(crate) finds_tests_itself: bool,
}

impl Manifest {
    pub(crate) fn parse(text: &str) -> Self {
        let mut manifest = Self { finds_tests_itself: true, ..Self::default() };
        let mut section = "";
        for line in text.lines().map(str::trim) {
            if line.starts_with('[') {
                section = line;
            }
            let Some((key, value)) = line.split_once('=') else { continue };
            let value = value.trim().trim_matches('"');
            match (section, key.trim()) {
                ("[package]", "autotests") => manifest.finds_tests_itself = value != "false",
                ("[[test]]", "name") => manifest.tests.push(value.into()),
                _ => {}
            }
        }
        manifest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found() {
        let manifest = Manifest::parse(
            "[package]\nname = \"a\"\nautotests = false\n[dependencies]\nname = \"x\"\n[[test]]\nname = \"t\"\n\
             harness = false\n[[test]]\nname = \"u\"\n",
        );
        assert_eq!(manifest.tests, ["t", "u"]);
        assert!(!manifest.finds_tests_itself);
    }
}
