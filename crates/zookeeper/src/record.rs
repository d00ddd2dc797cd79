//! What an entry's node contains: the mode and the label, for people and for whoever looks.

use leasehold_core::seam::Mode;

/// The first word of the data of an entry that is ours.
const OURS: &str = "leasehold/1 ";

/// The data of an entry.
pub(crate) fn encode(mode: Mode, label: &str) -> Vec<u8> {
    let mode = match mode {
        Mode::Exclusive => "exclusive".to_owned(),
        Mode::Shared => "shared".to_owned(),
        Mode::Permits { n, of } => format!("permits {n}/{of}"),
    };
    format!("{OURS}{mode}\n{label}").into_bytes()
}

/// The mode's word and the label of an entry of ours; `None` if another tool wrote the data.
fn parts(data: &[u8]) -> Option<(&str, &str)> {
    std::str::from_utf8(data).ok()?.strip_prefix(OURS)?.split_once('\n')
}

/// The label of an entry of ours; `None` if another tool wrote the data.
pub(crate) fn label(data: &[u8]) -> Option<&str> {
    parts(data).map(|(_, label)| label)
}

/// Whether an entry is shared, though its name says that it was not when it was made: a downgrade.
pub(crate) fn is_shared(data: &[u8]) -> bool {
    parts(data).is_some_and(|(mode, _)| mode == "shared")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_comes_back_and_other_tools_data_is_foreign() {
        let data = encode(Mode::Exclusive, "web-1\nx");
        assert_eq!((label(&data), is_shared(&data)), (Some("web-1\nx"), false));
        assert!(is_shared(&encode(Mode::Shared, "")));
        assert_eq!(label(&encode(Mode::Permits { n: 1, of: 3 }, &"é".repeat(2048))).unwrap().len(), 4096);
        for foreign in [&b"127.0.0.1"[..], b"", b"\xff\xfe", b"leasehold/1 exclusive", b"shared\n"] {
            assert_eq!((label(foreign), is_shared(foreign)), (None, false));
        }
    }
}
