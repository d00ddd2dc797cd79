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
pub(crate) fn decode(data: &[u8]) -> Option<(&str, &str)> {
    std::str::from_utf8(data).ok()?.strip_prefix(OURS)?.split_once('\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_comes_back_and_other_tools_data_is_foreign() {
        assert_eq!(decode(&encode(Mode::Exclusive, "web-1\nx")), Some(("exclusive", "web-1\nx")));
        assert_eq!(decode(&encode(Mode::Shared, "")), Some(("shared", "")));
        let long = "é".repeat(2048);
        assert_eq!(decode(&encode(Mode::Permits { n: 1, of: 3 }, &long)), Some(("permits 1/3", &*long)));
        for foreign in [&b"127.0.0.1"[..], b"", b"\xff\xfe", b"leasehold/1 exclusive", b"shared\n"] {
            assert_eq!(decode(foreign), None);
        }
    }
}
