//! Refuses circles of more than two files: a reader of a crate can begin with a file that needs no
//! other, and go up from there.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use super::imports::{Module, Segments};

/// The greatest number of re-exports between a name and its item.
const MAX_HOPS: usize = 16;

/// Files, each with the other files that it uses.
type Uses = BTreeMap<PathBuf, BTreeSet<PathBuf>>;

/// Lists the files of a crate that use one another in a circle, with the uses.
pub(super) fn circles(files: &[PathBuf]) -> Result<Vec<String>, String> {
    let is_root = |file: &&PathBuf| file.ends_with("src/lib.rs") || file.ends_with("src/main.rs");
    let read = |path: &Path| fs::read_to_string(path).ok();
    let found: Result<Vec<_>, _> = files
        .iter()
        .filter(is_root)
        .map(|root| below(root, &read))
        .collect();
    Ok(found?.concat())
}

fn below(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Result<Vec<String>, String> {
    let mut tree = Tree {
        nodes: Vec::new(),
        read,
    };
    tree.add_file(root, &root.with_file_name(""), None)?;
    let folder = root.with_file_name("");
    let name = |file: &Path| {
        file.strip_prefix(&folder)
            .unwrap_or(file)
            .with_extension("")
            .display()
            .to_string()
    };
    let uses = tree.uses();
    let told = grown_together(&uses).into_iter().map(|circle| {
        let each = circle.iter().map(|file| {
            let others: Vec<String> = uses[file]
                .intersection(&circle)
                .map(|other| name(other))
                .collect();
            format!("  {} uses {}", name(file), others.join(", "))
        });
        let each: Vec<String> = each.collect();
        format!(
            "a circle of {} files below {}\n{}",
            circle.len(),
            folder.display(),
            each.join("\n")
        )
    });
    Ok(told.collect())
}

/// The modules of a crate.
struct Tree<'a> {
    nodes: Vec<Node>,
    read: &'a dyn Fn(&Path) -> Option<String>,
}

struct Node {
    file: PathBuf,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    names: BTreeMap<String, Segments>,
    paths: Vec<Segments>,
}

impl Tree<'_> {
    /// Adds the module that is this file; the files of its children are in `folder`.
    fn add_file(
        &mut self,
        file: &Path,
        folder: &Path,
        parent: Option<usize>,
    ) -> Result<usize, String> {
        let text = (self.read)(file).ok_or_else(|| format!("there is no {}", file.display()))?;
        let module =
            Module::parse(&text).map_err(|error| format!("{}: {error}", file.display()))?;
        self.add(module, file, folder, parent)
    }

    fn add(
        &mut self,
        module: Module,
        file: &Path,
        folder: &Path,
        parent: Option<usize>,
    ) -> Result<usize, String> {
        let at = self.nodes.len();
        let Module {
            children,
            names,
            paths,
        } = module;
        self.nodes.push(Node {
            file: file.to_owned(),
            parent,
            children: BTreeMap::new(),
            names,
            paths,
        });
        for (name, child) in children {
            let inside = folder.join(&name);
            let child = match child {
                Some(child) => self.add(child, file, &inside, Some(at))?,
                None => {
                    let [beside, within] =
                        [folder.join(format!("{name}.rs")), inside.join("mod.rs")];
                    let file = if (self.read)(&beside).is_some() {
                        beside
                    } else {
                        within
                    };
                    self.add_file(&file, &inside, Some(at))?
                }
            };
            self.nodes[at].children.insert(name, child);
        }
        Ok(at)
    }

    fn uses(&self) -> Uses {
        let mut uses = Uses::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let others = node
                .paths
                .iter()
                .filter_map(|path| self.module_of(at, path, MAX_HOPS));
            let others = others
                .map(|other| self.nodes[other].file.clone())
                .filter(|file| *file != node.file);
            uses.entry(node.file.clone()).or_default().extend(others);
        }
        uses
    }

    /// The module of the item that `path` names in the module `from`; `None` if the item is of
    /// another crate, or local.
    fn module_of(&self, from: usize, path: &[String], hops: usize) -> Option<usize> {
        let (first, mut rest) = path.split_first()?;
        let here = &self.nodes[from];
        let mut at = match first.as_str() {
            name if here.names.contains_key(name) => return self.through(from, path, hops),
            // A single word may be a variable, or the word in `pub(crate)`.
            _ if rest.is_empty() => return None,
            "crate" => 0,
            "self" => from,
            "super" => here.parent?,
            name => *here.children.get(name)?,
        };
        while let [segment, after @ ..] = rest {
            let node = &self.nodes[at];
            at = match (segment.as_str(), node.children.get(segment)) {
                ("super", _) => node.parent?,
                (_, Some(child)) => *child,
                (name, None) if node.names.contains_key(name) => {
                    return self.through(at, rest, hops);
                }
                _ => return Some(at),
            };
            rest = after;
        }
        Some(at)
    }

    /// Continues in the module from which the first name of the path comes.
    fn through(&self, at: usize, path: &[String], hops: usize) -> Option<usize> {
        let origin = self.nodes[at].names.get(&path[0])?;
        let whole: Vec<String> = origin.iter().chain(&path[1..]).cloned().collect();
        self.module_of(at, &whole, hops.checked_sub(1)?)
    }
}

/// The groups of more than two files in which each file needs each other one.
fn grown_together(uses: &Uses) -> BTreeSet<BTreeSet<PathBuf>> {
    let reached: BTreeMap<&PathBuf, BTreeSet<&PathBuf>> = uses
        .keys()
        .map(|file| (file, reached(uses, file)))
        .collect();
    let group = |file: &PathBuf| -> BTreeSet<PathBuf> {
        let others = reached[file]
            .iter()
            .filter(|other| reached[**other].contains(file));
        others.map(|other| (*other).clone()).collect()
    };
    uses.keys()
        .map(group)
        .filter(|group| group.len() > 2)
        .collect()
}

fn reached<'a>(uses: &'a Uses, from: &PathBuf) -> BTreeSet<&'a PathBuf> {
    let mut reached = BTreeSet::new();
    let mut ahead: Vec<&PathBuf> = uses[from].iter().collect();
    while let Some(file) = ahead.pop() {
        if reached.insert(file) {
            ahead.extend(&uses[file]);
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let read = |path: &Path| {
            let (_, text) = files.iter().find(|(name, _)| Path::new(name) == path)?;
            Some((*text).to_owned())
        };
        below(Path::new("lib.rs"), &read).unwrap()
    }

    #[test]
    fn a_circle_of_three_is_refused() {
        let root = ("lib.rs", "mod a;\nmod b;\nmod c;\npub use c::C;\n");
        let [a, b] = [
            ("a.rs", "use crate::b::B;\n"),
            ("b.rs", "fn f() { crate::C::new() }\n"),
        ];
        let told = found(&[root, a, b, ("c.rs", "use super::a;\n")]);
        assert_eq!(
            told,
            ["a circle of 3 files below \n  a uses b\n  b uses c\n  c uses a"]
        );
        assert!(
            found(&[
                root,
                a,
                b,
                ("c.rs", "//! See crate::a.\n#[cfg(test)]\nuse crate::a;\n")
            ])
            .is_empty()
        );
    }

    #[test]
    fn a_folder_that_uses_its_files_is_part_of_a_circle() {
        let [root, one] = [
            ("lib.rs", "mod a;\n"),
            ("a/one.rs", "pub(super) use super::two::Two;\n"),
        ];
        let two = ("a/two.rs", "use super::A;\n");
        let a = (
            "a.rs",
            "mod one;\nmod two;\npub use one::Two;\npub struct A;\nfn f() -> one::Two { g() }\n",
        );
        assert!(
            found(&[root, one, two, a]).is_empty(),
            "two files may need each other"
        );
        let one = ("a/one.rs", "use super::two::Two;\npub struct One;\n");
        let a = (
            "a.rs",
            "mod one;\nmod two;\npub use one::One;\npub struct A;\nfn f() -> One { g() }\n",
        );
        assert_eq!(found(&[root, one, two, a]).len(), 1);
        let a = (
            "a.rs",
            "mod one;\nmod two;\npub use one::One;\npub struct A;\n",
        );
        assert!(
            found(&[root, one, two, a]).is_empty(),
            "a re-export alone is no use"
        );
    }
}
