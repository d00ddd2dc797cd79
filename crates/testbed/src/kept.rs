//! Files that are made once and serve many test programs. They lie beside these programs, in
//! cargo's target folder, and go with it.

use std::{
    env,
    fs::{self, File},
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
};

use crate::error::{Error, Result};

/// Returns the path of the file or folder of this name. If it is not there, `make` makes it at the
/// path that it is given, and all others wait for that.
pub(crate) fn kept(name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let program = env::current_exe().map_err(Error::io("finding this program"))?;
    kept_in(&program.with_file_name("testbed"), name, make)
}

fn kept_in(folder: &Path, name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let keeping = || Error::io(format!("keeping {name}"));
    let path = folder.join(name);
    if path.exists() {
        return Ok(path);
    }
    fs::create_dir_all(folder).map_err(keeping())?;
    let lock = File::create(folder.join("lock")).map_err(keeping())?;
    lock.lock().map_err(keeping())?;
    if !path.exists() {
        // A program that is killed meanwhile leaves nothing of this name.
        let unready = tempfile::tempdir_in(folder).map_err(keeping())?;
        let made = unready.path().join(name);
        make(&made)?;
        fs::rename(&made, &path).map_err(keeping())?;
    }
    Ok(path)
}

/// A name that changes with these words, and with the files among them: what was made from others
/// is not used.
pub(crate) fn name_of(what: &str, words: &[&str]) -> String {
    let mut hasher = DefaultHasher::new();
    for word in words {
        let changed = fs::metadata(word).and_then(|file| file.modified()).ok();
        (word, changed).hash(&mut hasher);
    }
    format!("{what}-{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("new");
        let write = |text: &'static str| {
            move |path: &Path| fs::write(path, text).map_err(Error::io("writing"))
        };
        let failed = kept_in(&folder, "a", |path| {
            write("half")(path)?;
            Err(Error::answer("a", "no"))
        });
        assert!(failed.is_err());
        let path = kept_in(&folder, "a", write("one")).unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), "one");
        let path = kept_in(&folder, "a", write("two")).unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), "one");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "it and the lock");
    }

    #[test]
    fn its_name_changes_with_what_it_is_made_from() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("program").display().to_string();
        let before = name_of("a", &[&file, "-x"]);
        assert_eq!(name_of("a", &[&file, "-x"]), before);
        assert_ne!(name_of("a", &[&file, "-y"]), before);
        fs::write(&file, "").unwrap();
        assert_ne!(name_of("a", &[&file, "-x"]), before);
    }
}
