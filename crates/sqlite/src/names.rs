//! Names of the files that belong to a store's file.

use std::path::{Path, PathBuf};

/// Returns the path of a file beside this one, with this ending after its name.
pub(crate) fn beside(real: &Path, ending: &str) -> PathBuf {
    let mut path = real.as_os_str().to_owned();
    path.push(ending);
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_beside_another_begins_with_its_name() {
        assert_eq!(
            beside(Path::new("/var/a.db"), "-shm"),
            Path::new("/var/a.db-shm")
        );
    }
}
