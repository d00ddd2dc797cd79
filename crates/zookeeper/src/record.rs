//! What an entry's node contains: the mode and the label, for people and for whoever looks.

use leasehold_core::MAX_LABEL_BYTES;
use leasehold_core::seam::Mode;

/// The first word of the data of an entry that is ours.
const OURS: &str = "leasehold/1 ";

/// The data of an entry. A label that is too long is cut.
pub(crate) fn encode(mode: Mode, label: &str) -> Vec<u8> {
    let mode = match mode {
        Mode::Exclusive => "exclusive".to_owned(),
        Mode::Shared => "shared".to_owned(),
        Mode::Permits { n, of } => format!("permits {n}/{of}"),
    };
    let mut end = label.len().min(MAX_LABEL_BYTES);
    while !label.is_char_boundary(end) {
        end -= 1;
    }
    format!("{OURS}{mode}\n{}", &label[..end]).into_bytes()
}

/// The label of an entry of ours; `None` if another tool wrote the data.
pub(crate) fn label(data: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(data).ok()?;
    Some(text.strip_prefix(OURS)?.split_once('\n')?.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_comes_back_cut_to_its_limit_and_other_tools_data_is_foreign() {
        assert_eq!(label(&encode(Mode::Exclusive, "web-1\nx")), Some("web-1\nx"));
        assert_eq!(label(&encode(Mode::Permits { n: 1, of: 3 }, &"é".repeat(200))).unwrap().len(), MAX_LABEL_BYTES);
        assert_eq!(label(&encode(Mode::Shared, &format!("x{}", "é".repeat(200)))).unwrap().len(), MAX_LABEL_BYTES - 1);
        for foreign in [&b"127.0.0.1"[..], b"", b"\xff\xfe", b"leasehold/1 exclusive"] {
            assert_eq!(label(foreign), None);
        }
    }
}
