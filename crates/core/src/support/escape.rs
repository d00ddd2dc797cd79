//! Text with some characters percent-encoded, for keys that keep the names of locks.

use percent_encoding::percent_decode_str;

/// Writes `name` so that it contains none of the `special` characters: these and `%` are
/// percent-encoded, the rest stays as it is. Different names stay different.
///
/// # Examples
///
/// ```
/// use leasehold_core::backend::{escape, unescape};
///
/// let key = escape("a/b", |c| c == '/');
/// assert_eq!(key, "a%2Fb");
/// assert_eq!(unescape(&key, |c| c == '/').as_deref(), Some("a/b"));
/// ```
pub fn escape(name: &str, special: impl Fn(char) -> bool) -> String {
    let mut escaped = String::with_capacity(name.len());
    for c in name.chars() {
        if c == '%' || special(c) {
            c.encode_utf8(&mut [0; 4])
                .bytes()
                .for_each(|byte| escaped.push_str(&format!("%{byte:02X}")));
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// The text from which [`escape`](crate::backend::escape) made `escaped`; `None` if `escape` could
/// not have made it, so that a key of another tool is not mistaken for one of Leasehold's.
pub fn unescape(escaped: &str, special: impl Fn(char) -> bool) -> Option<String> {
    let name = percent_decode_str(escaped).decode_utf8().ok()?;
    (escape(&name, special) == escaped).then(|| name.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_come_back_and_never_collide() {
        let special = |c: char| c == '/' || c.is_control();
        let names = [
            "a",
            "a/b",
            "a%2Fb",
            "%",
            "%25",
            "a\nb",
            "\u{e9}/\u{6f22}",
            "",
        ];
        let escaped: Vec<String> = names.iter().map(|name| escape(name, special)).collect();
        for (i, text) in escaped.iter().enumerate() {
            assert_eq!(unescape(text, special).as_deref(), Some(names[i]));
            assert!(!text.contains('/'));
            assert_eq!(escaped.iter().filter(|other| *other == text).count(), 1);
        }
        for foreign in ["a/b", "%2f", "%zz", "%", "%41", "%FF"] {
            assert_eq!(unescape(foreign, special), None, "{foreign}");
        }
    }
}
