//! What a server answers, as far as it has to be the same on two of them.

/// An answer.
#[derive(Debug, PartialEq, PartialOrd)]
pub(crate) enum Answer {
    Text(char, String),
    /// The code of an error that a script ends with, or all of another one.
    Error(String),
    Int(i64),
    List(char, Vec<Answer>),
}

impl Answer {
    /// Reads one, and says how long it is.
    pub(crate) fn read(bytes: &[u8]) -> Option<(Answer, usize)> {
        let end = bytes.windows(2).position(|two| two == b"\r\n")?;
        let (sign, line) = (
            char::from(bytes[0]),
            String::from_utf8_lossy(&bytes[1..end]).into_owned(),
        );
        let mut read = end + 2;
        let answer = match sign {
            '-' => {
                let is_of_script = ["script", "user_script", "compiling"]
                    .iter()
                    .any(|word| line.contains(word));
                let code = line.split(' ').next().unwrap_or_default().to_owned();
                Answer::Error(if is_of_script { code } else { line })
            }
            ':' => Answer::Int(line.parse().ok()?),
            '$' | '=' if line != "-1" => {
                let long: usize = line.parse().ok()?;
                let text = bytes.get(read..read + long)?;
                read += long + 2;
                if bytes.len() < read {
                    return None;
                }
                Answer::Text(sign, String::from_utf8_lossy(text).into_owned())
            }
            '*' | '%' | '>' | '~' if line != "-1" => {
                let many: usize = line.parse().ok()?;
                let mut each = Vec::new();
                for _ in 0..many * if sign == '%' { 2 } else { 1 } {
                    let (one, long) = Answer::read(&bytes[read..])?;
                    read += long;
                    each.push(one);
                }
                Answer::List(sign, each)
            }
            _ => Answer::Text(sign, line),
        };
        Some((answer, read))
    }
}
