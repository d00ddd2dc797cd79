//! Names of locks: what a user may call a lock, and how typed keys become one name without
//! colliding.
//!
//! A store encodes names in its own way, so the rules are only what all stores can keep: UTF-8, no
//! NUL, at most 512 bytes. Keys of several parts are joined here, once and injectively, so that
//! users do not build names by formatting and collide.

use std::borrow::Cow;
use std::fmt::{self, Display, Write as _};

use smol_str::{SmolStr, SmolStrBuilder, format_smolstr};

use crate::backend::error::{Error, ErrorKind, Result};

/// The longest name, in bytes of UTF-8, without the namespace of the store.
pub const MAX_NAME_BYTES: usize = 512;

/// The name of a lock: any UTF-8 text without NUL, from 1 to
/// [`MAX_NAME_BYTES`](crate::MAX_NAME_BYTES) bytes.
///
/// Two different names never interact, on any store: `"a"`, `"a/b"`, `"x"` and `"x{y}"` are four
/// locks. Making a name never fails; a bad one is reported by the first request that uses it, as
/// [`Invalid`](crate::ErrorKind::Invalid).
///
/// Most methods take `impl Into<Name>`: text, or a pair of a kind and an id.
///
/// # Examples
///
/// ```
/// use leasehold_core::Name;
///
/// assert_eq!(Name::from(("orders", 42)).as_str(), "orders/42");
/// // Parts are escaped, so typed keys cannot collide.
/// assert_ne!(Name::of(["a/b", "c"]), Name::of(["a", "b/c"]));
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(SmolStr);

impl Name {
    /// A name with this text, as it is.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold_core::Name;
    ///
    /// assert_eq!(Name::new("orders/42").as_str(), "orders/42");
    /// assert_ne!(Name::new("orders/42"), Name::new("Orders/42"));
    /// ```
    pub fn new(name: impl AsRef<str>) -> Name {
        Name(SmolStr::new(name))
    }

    /// A name of several parts, joined by `/`. A `/` or `%` inside of a part is percent-encoded, so
    /// different parts never make the same name.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold_core::Name;
    ///
    /// let name = Name::of(["eu", "orders", "a/b"]);
    /// assert_eq!(name.as_str(), "eu/orders/a%2Fb");
    /// ```
    pub fn of<P: Display>(parts: impl IntoIterator<Item = P>) -> Name {
        let mut joined = Parts(SmolStrBuilder::new());
        for (i, part) in parts.into_iter().enumerate() {
            if i > 0 {
                joined.0.push('/');
            }
            let _ = write!(joined, "{part}");
        }
        Name(joined.0.finish())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// This name inside a namespace, as the store sees it.
    pub(crate) fn within(&self, namespace: &str) -> Name {
        if namespace.is_empty() {
            self.clone()
        } else {
            Name(format_smolstr!("{namespace}/{self}"))
        }
    }

    /// Checks a name that is to be taken.
    pub(crate) fn check(&self) -> Result<()> {
        if self.0.len() > MAX_NAME_BYTES {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a lock's name may have at most 512 bytes",
            ));
        }
        self.check_existing()
    }

    /// Checks a name that is only looked up. Seen from outside of its namespace it begins with
    /// that, and may be longer than a name that is taken.
    pub(crate) fn check_existing(&self) -> Result<()> {
        let wrong = if self.0.is_empty() {
            "a lock's name may not be empty"
        } else if self.0.contains('\0') {
            "a lock's name may not contain NUL"
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Invalid, wrong))
    }
}

/// Escapes what separates parts while a part is written.
struct Parts(SmolStrBuilder);

impl fmt::Write for Parts {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for c in s.chars() {
            match c {
                '/' => self.0.push_str("%2F"),
                '%' => self.0.push_str("%25"),
                c => self.0.push(c),
            }
        }
        Ok(())
    }
}

impl Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

macro_rules! from_text {
    ($($text:ty),*) => {
        $(impl From<$text> for Name {
            fn from(text: $text) -> Name {
                Name::new(text)
            }
        })*
    };
}

from_text!(&str, String, &String, Cow<'_, str>);

impl From<&Name> for Name {
    fn from(name: &Name) -> Name {
        name.clone()
    }
}

impl<A: Display, B: Display> From<(A, B)> for Name {
    fn from((a, b): (A, B)) -> Name {
        Name::of([&a as &dyn Display, &b])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_injective() {
        assert_eq!(Name::of(["a", "b"]).as_str(), "a/b");
        assert_eq!(Name::of(["a/b"]).as_str(), "a%2Fb");
        assert_ne!(Name::of(["a%2Fb"]), Name::of(["a/b"]));
        let name = Name::of(["a/b"]);
        assert_eq!(
            (name.to_string(), format!("{name:?}")),
            ("a%2Fb".into(), "\"a%2Fb\"".into())
        );
    }

    #[test]
    fn bad_names_are_invalid() {
        for bad in ["", "a\0b", &"x".repeat(513)] {
            assert_eq!(
                Name::new(bad).check().unwrap_err().kind(),
                ErrorKind::Invalid
            );
        }
        for good in ["a", "a/b", "{}", "\u{1F512}", &"x".repeat(512)] {
            assert!(Name::new(good).check().is_ok());
        }
    }
}
