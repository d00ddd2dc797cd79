//! Names of nodes: a lock's node, the entries below it, and the sessions' own nodes.

use leasehold_core::Name;
use leasehold_core::backend::Mode;
use leasehold_core::support::{escape, unescape};

/// The parent of the sessions' own nodes. Keep-alives are writes to it. No lock's node has this
/// name.
pub(crate) fn sessions(root: &str) -> String {
    format!("{root}/.leasehold")
}

/// The node with the raises of tokens.
pub(crate) fn base(root: &str) -> String {
    format!("{}/base", sessions(root))
}

/// The node whose creation is the identity of the store. It stays for good, and keeps the nodes
/// above it, which ZooKeeper would remove a minute after their last use.
pub(crate) fn store(root: &str) -> String {
    format!("{}/store", sessions(root))
}

/// The node of a session that other clients write to so that this session checks its nodes.
pub(crate) fn notification(root: &str, session: i64) -> String {
    format!("{}/{session:016x}-notify", sessions(root))
}

/// The node above the folders of completions.
pub(crate) fn completions(root: &str) -> String {
    format!("{}/done", sessions(root))
}

/// The folder of a name's completion, one of 256. It stays for good: each completion in it writes
/// to it, so its version tells whether one was recorded meanwhile.
pub(crate) fn folder(root: &str, name: &Name) -> String {
    format!("{}/{:02x}", completions(root), hash(name.as_str()))
}

/// The node of a name's completion.
pub(crate) fn completion(root: &str, name: &Name) -> String {
    format!("{}/{}", folder(root, name), encode(name.as_str()))
}

/// FNV-1a, folded to a byte. Versions of the library must agree on it.
fn hash(name: &str) -> u8 {
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let hash = name.bytes().fold(0x811c_9dc5, step);
    hash.to_be_bytes()
        .into_iter()
        .fold(0, |all, byte| all ^ byte)
}

/// The node of a lock: the parent of its entries.
pub(crate) fn node(root: &str, name: &Name) -> String {
    format!("{root}/{}", encode(name.as_str()))
}

/// Returns whether this is the path of an entry of this lock.
pub(crate) fn is_of(entry: &str, name: &Name) -> bool {
    let parent = entry
        .rsplit_once('/')
        .and_then(|(parent, _)| parent.rsplit('/').next());
    parent == Some(&encode(name.as_str()))
}

/// Percent-encodes `/`, `%`, control characters, everything that is not ASCII, and a dot at the
/// beginning.
fn encode(name: &str) -> String {
    let escaped = escape(name, special);
    match escaped.strip_prefix('.') {
        Some(rest) => format!("%2E{rest}"),
        None => escaped,
    }
}

/// The name from which [`encode`] makes this node; `None` if there is none.
pub(crate) fn decode(node: &str) -> Option<Name> {
    let name = match node.strip_prefix("%2E") {
        Some(rest) => format!(".{}", unescape(rest, special)?),
        None => unescape(node, special).filter(|name| !name.starts_with('.'))?,
    };
    Some(Name::new(name))
}

fn special(c: char) -> bool {
    c == '/' || c.is_control() || !c.is_ascii()
}

/// The part of an entry's name between its random start and its sequence number. It ends as in
/// Curator's and kazoo's mutexes in every mode, so that those wait for all entries.
pub(crate) fn ending(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "lock-".to_owned(),
        Mode::Shared => "shared-lock-".to_owned(),
        Mode::Permits { n, of } => format!("{n}of{of}-lock-"),
    }
}

/// The mode of the entry of this name. Other tools' read locks are shared; every other entry is
/// exclusive.
pub(crate) fn mode(node: &str) -> Mode {
    let kind = node
        .rsplit_once("-lock-")
        .and_then(|(head, _)| head.rsplit('-').next());
    let permits =
        |(n, of): (&str, &str)| Mode::from_parts("permits", n.parse().ok()?, of.parse().ok()?);
    match kind {
        Some("shared") => Mode::Shared,
        Some(kind) => kind
            .split_once("of")
            .and_then(permits)
            .unwrap_or(Mode::Exclusive),
        None if node.contains("__READ__") || node.contains("__rlock__") => Mode::Shared,
        None => Mode::Exclusive,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CURATOR: &str = "_c_00010203-0405-0607-0809-0a0b0c0d0e0f-";

    #[test]
    fn names_come_back_and_never_meet() {
        let long = "\u{1F512}".repeat(128);
        let names = [
            "a",
            "a/b",
            "a%2Fb",
            "{a}",
            "\"a'",
            ".",
            "..",
            ".leasehold",
            "zookeeper",
            "a b",
            "é",
            "\u{7f}",
            &long,
        ];
        let mut nodes: Vec<String> = names.iter().map(|name| encode(name)).collect();
        for (name, node) in names.iter().zip(&nodes) {
            assert_eq!(decode(node).unwrap().as_str(), *name);
            assert!(
                node.is_ascii() && !node.contains('/') && !node.starts_with('.'),
                "{node}"
            );
        }
        nodes.sort();
        nodes.dedup();
        assert_eq!(nodes.len(), names.len());
        for foreign in ["a%2fb", ".leasehold", "%", "%FF", "é"] {
            assert_eq!(decode(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn an_entry_s_name_says_its_mode() {
        for of in [
            Mode::Exclusive,
            Mode::Shared,
            Mode::Permits { n: 2, of: 3 },
            Mode::Permits { n: 1, of: u32::MAX },
        ] {
            assert_eq!(mode(&format!("{CURATOR}{}0000000007", ending(of))), of);
        }
        for shared in ["_c_x-__READ__0000000007", "0123__rlock__0000000007"] {
            assert_eq!(mode(shared), Mode::Shared);
        }
        for other in [
            "0123__lock__0000000007",
            "x-lock-0000000007",
            "-ofof1-lock-7",
            "x-9of3-lock-7",
            "x-0of0-lock-7",
            "1of99999999999-lock-7",
            "lock-7",
        ] {
            assert_eq!(mode(other), Mode::Exclusive, "{other}");
        }
    }

    #[test]
    fn no_lock_is_called_as_our_own_nodes_are() {
        let own = [sessions("/r"), base("/r"), notification("/r", 0x1f)];
        assert_eq!(
            own,
            [
                "/r/.leasehold",
                "/r/.leasehold/base",
                "/r/.leasehold/000000000000001f-notify"
            ]
        );
        assert_ne!(node("/r", &Name::new(".leasehold")), own[0]);
    }

    /// Versions of the library find each other's completions.
    #[test]
    fn a_completion_is_always_in_the_same_folder() {
        for (name, path) in [
            ("a", "/r/.leasehold/done/ed/a"),
            ("orders/42", "/r/.leasehold/done/46/orders%2F42"),
        ] {
            assert_eq!(completion("/r", &Name::new(name)), path);
        }
        let folders: std::collections::HashSet<String> = (0..4000)
            .map(|nth| folder("/r", &Name::new(format!("n{nth}"))))
            .collect();
        assert_eq!(folders.len(), 256);
    }
}
