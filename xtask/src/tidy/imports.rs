//! The names in one module: its child modules, its `use` items, and every path outside of its
//! tests.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// The segments of a path.
pub(super) type Segments = Vec<String>;

/// One module, as it is written.
#[derive(Default)]
pub(super) struct Module {
    /// Its child modules; `None`: in a file of its own.
    pub(super) children: BTreeMap<String, Option<Module>>,
    /// The names that its `use` items bring into scope.
    pub(super) names: BTreeMap<String, Segments>,
    /// The paths in its code and its private `use` items. A re-export alone uses nothing.
    pub(super) paths: Vec<Segments>,
}

impl Module {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut words = Vec::new();
        flatten(
            text.parse().map_err(|error| format!("no Rust: {error}"))?,
            &mut words,
        );
        let mut module = Self::default();
        module.read(&words.iter().map(String::as_str).collect::<Vec<_>>());
        Ok(module)
    }

    fn read(&mut self, words: &[&str]) {
        let mut rest = words;
        while !rest.is_empty() {
            rest = match rest {
                ["#", "[", "cfg", "(", "test", ")", "]", item @ ..] => after_item(item),
                ["#", "!", attribute @ ..] | ["#", attribute @ ..] => after_group(attribute),
                ["pub", "use", tree @ ..] | ["pub", "(", _, ")", "use", tree @ ..] => {
                    self.import(tree, &[], true)
                }
                // The lifetimes that a return type captures.
                ["use", "<", after @ ..] => after,
                ["use", tree @ ..] => self.import(tree, &[], false),
                ["mod", name, ";", after @ ..] => {
                    self.children.insert((*name).into(), None);
                    after
                }
                ["mod", name, "{", inner @ ..] => {
                    let after = after_group(&rest[2..]);
                    let mut child = Self::default();
                    child.read(&inner[..inner.len() - after.len()]);
                    self.children.insert((*name).into(), Some(child));
                    after
                }
                // A method, a field, or an item of a type in angle brackets.
                ["." | "::", word, after @ ..] if is_word(word) => after,
                [word, ..] if is_word(word) => self.path(rest),
                [_, after @ ..] => after,
                [] => rest,
            };
        }
    }

    fn path<'a>(&mut self, words: &'a [&'a str]) -> &'a [&'a str] {
        let mut segments = vec![words[0].to_owned()];
        let mut rest = &words[1..];
        while let ["::", word, after @ ..] = rest
            && is_word(word)
        {
            segments.push((*word).into());
            rest = after;
        }
        self.paths.push(segments);
        rest
    }

    /// Reads the tree of a `use` item below `prefix`, and returns the words after it.
    fn import<'a>(
        &mut self,
        words: &'a [&'a str],
        prefix: &[String],
        public: bool,
    ) -> &'a [&'a str] {
        let mut segments = prefix.to_vec();
        let mut rest = words;
        loop {
            rest = match rest {
                ["{", inner @ ..] => {
                    let mut rest = inner;
                    while !matches!(rest, ["}", ..] | []) {
                        rest = self.import(rest, &segments, public);
                        rest = rest.strip_prefix(&[","]).unwrap_or(rest);
                    }
                    return rest.get(1..).unwrap_or_default();
                }
                ["as", name, after @ ..] => {
                    self.bind(name, segments, public);
                    return after;
                }
                ["self", after @ ..] if !segments.is_empty() => after,
                ["::" | "*", after @ ..] => after,
                [word, after @ ..] if is_word(word) => {
                    segments.push((*word).into());
                    after
                }
                _ => {
                    let name = segments.last().cloned().unwrap_or_default();
                    self.bind(&name, segments, public);
                    return rest;
                }
            }
        }
    }

    fn bind(&mut self, name: &str, segments: Segments, public: bool) {
        if !public {
            self.paths.push(segments.clone());
        }
        self.names.insert(name.into(), segments);
    }
}

/// Words and signs in their order; `::` is one of them, and so is each bracket.
fn flatten(stream: TokenStream, words: &mut Vec<String>) {
    let mut joins = false;
    for token in stream {
        let joined = std::mem::take(&mut joins);
        match token {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                words.push(open.into());
                flatten(group.stream(), words);
                words.push(close.into());
            }
            TokenTree::Punct(sign) if joined && sign.as_char() == ':' => {
                words.pop();
                words.push("::".into());
            }
            TokenTree::Punct(sign) => {
                joins = sign.as_char() == ':' && sign.spacing() == Spacing::Joint;
                words.push(sign.as_char().into());
            }
            TokenTree::Ident(word) => words.push(word.to_string()),
            TokenTree::Literal(_) => words.push("0".into()),
        }
    }
}

fn is_word(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Returns the words after the group whose bracket opens here.
fn after_group<'a>(words: &'a [&'a str]) -> &'a [&'a str] {
    let mut depth = 0_usize;
    for (at, word) in words.iter().enumerate() {
        match *word {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return &words[at + 1..];
        }
    }
    &[]
}

/// Returns the words after an item, which ends with its body or with a semicolon.
fn after_item<'a>(words: &'a [&'a str]) -> &'a [&'a str] {
    let mut rest = words;
    let mut import = false;
    loop {
        match rest {
            [";", after @ ..] => return after,
            ["{", ..] if !import => return after_group(rest),
            ["(" | "[" | "{", ..] => rest = after_group(rest),
            [word, after @ ..] => {
                import |= *word == "use";
                rest = after;
            }
            [] => return rest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(all: &[Segments]) -> Vec<String> {
        all.iter()
            .filter(|path| path.len() > 1)
            .map(|path| path.join("::"))
            .collect()
    }

    #[test]
    fn a_module_names_what_it_uses() {
        let text = "//! crate::not::this\nuse crate::a::{self, b::C as D, e};\npub use f::G;\nmod h;\n\
                    fn i<T>(_: &'static str) -> impl j::K + use<T> { crate::l::m(\"crate::n\"); x.crate_::<T>() }";
        let module = Module::parse(text).unwrap();
        assert_eq!(
            joined(&module.paths),
            [
                "crate::a",
                "crate::a::b::C",
                "crate::a::e",
                "j::K",
                "crate::l::m"
            ]
        );
        assert_eq!(
            module.names.keys().collect::<Vec<_>>(),
            ["D", "G", "a", "e"]
        );
        assert!(module.children["h"].is_none());
    }

    #[test]
    fn tests_use_nothing() {
        let text = "#[cfg(test)]\nuse crate::a::{B, C};\n#[cfg(test)]\nmod tests { use crate::d; }\n\
                    #[cfg(test)]\nmod e;\nmod f { use crate::g; }";
        let module = Module::parse(text).unwrap();
        assert!(module.paths.is_empty() && module.names.is_empty());
        assert_eq!(module.children.keys().collect::<Vec<_>>(), ["f"]);
        assert_eq!(
            joined(&module.children["f"].as_ref().unwrap().paths),
            ["crate::g"]
        );
    }
}
