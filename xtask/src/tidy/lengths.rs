//! How long files and functions may be: small ones are read, long ones are searched.

const MAX_LINES: usize = 350;
const MAX_LINES_OF_A_FUNCTION: usize = 60;

/// Says whether a source is too long, or which of its functions are.
pub(super) fn lengths(text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() > MAX_LINES {
        complaints.push(format!("{} lines, more than {MAX_LINES}", lines.len()));
    }
    for (at, line) in lines.iter().enumerate() {
        if let Some(name) = function(line)
            && let Some(code) = code_lines(&lines[at..])
            && code > MAX_LINES_OF_A_FUNCTION
        {
            complaints.push(format!("{name} has {code} lines of code, more than {MAX_LINES_OF_A_FUNCTION}"));
        }
    }
    complaints
}

/// The name of the function that begins in this line.
fn function(line: &str) -> Option<&str> {
    let mut words = line.trim_start().split(' ');
    let modifiers = ["pub", "pub(crate)", "pub(super)", "const", "async"];
    words.find(|word| !modifiers.contains(word)).filter(|word| *word == "fn")?;
    words.next()?.split(['(', '<']).next().filter(|name| !name.starts_with('$'))
}

/// Lines of the body that are neither blank nor comment. The brace that closes it stands below the function's first word, as
/// rustfmt puts it. `None`: it has no body, or one in its own line.
fn code_lines(lines: &[&str]) -> Option<usize> {
    let opens = lines.iter().position(|line| line.ends_with(['{', '}', ';'])).filter(|at| lines[*at].ends_with('{'))?;
    let indent = lines[0].len() - lines[0].trim_start().len();
    let closing = format!("{}}}", &lines[0][..indent]);
    let body = lines[opens + 1..].iter().take_while(|line| **line != closing).map(|line| line.trim());
    Some(body.filter(|line| !line.is_empty() && !line.starts_with("//")).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_function_is_refused() {
        let body = |lines: usize| "        x();\n\n        // y\n".repeat(lines);
        let text = |lines| {
            format!("impl A {{\n    fn a();\n    pub(crate) async fn b<T>(\n    ) {{\n{}    }}\n}}\n", body(lines))
        };
        assert!(lengths(&text(MAX_LINES_OF_A_FUNCTION)).is_empty());
        assert_eq!(lengths(&text(MAX_LINES_OF_A_FUNCTION + 1)), ["b has 61 lines of code, more than 60"]);
    }

    #[test]
    fn a_long_file_is_refused() {
        assert!(lengths(&"//\n".repeat(MAX_LINES)).is_empty());
        assert_eq!(lengths(&"//\n".repeat(MAX_LINES + 1)), ["351 lines, more than 350"]);
    }
}
