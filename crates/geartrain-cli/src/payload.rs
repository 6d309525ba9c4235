//! Payloads: read from an argument, a file or standard input.

use std::io::Read;
use std::path::PathBuf;
use std::str::FromStr;

use geartrain::Payload;

use crate::failure::Failure;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// The argument itself.
    Text(String),
    /// Standard input: `-`.
    Stdin,
    /// A file: `@FILE`.
    File(PathBuf),
}

impl FromStr for Source {
    type Err = String;
    fn from_str(text: &str) -> Result<Source, String> {
        match text.strip_prefix('@') {
            Some("") => Err("@ needs a file name after it".to_owned()),
            Some(file) => Ok(Source::File(file.into())),
            None if text == "-" => Ok(Source::Stdin),
            None => Ok(Source::Text(text.to_owned())),
        }
    }
}

impl Source {
    /// Reads the bytes unchanged.
    pub(crate) fn read(&self) -> Result<Payload, Failure> {
        self.read_as("payload")
    }

    /// Like `read`, for something else than the payload.
    pub(crate) fn read_as(&self, what: &str) -> Result<Payload, Failure> {
        match self {
            Source::Text(text) => Ok(Payload::from(text.as_str())),
            Source::Stdin => {
                let mut bytes = Vec::new();
                std::io::stdin()
                    .lock()
                    .read_to_end(&mut bytes)
                    .map_err(|error| Failure::Usage(format!("cannot read standard input: {error}")))?;
                Ok(bytes.into())
            }
            Source::File(file) => std::fs::read(file).map(Payload::from).map_err(|error| {
                Failure::Usage(format!("cannot read the {what} from {}: {error}", file.display()))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_names_text_stdin_or_a_file() {
        assert_eq!("{}".parse(), Ok(Source::Text("{}".to_owned())));
        assert_eq!("".parse(), Ok(Source::Text(String::new())));
        assert_eq!("-".parse(), Ok(Source::Stdin));
        assert_eq!("-5".parse(), Ok(Source::Text("-5".to_owned())));
        assert_eq!("@a b".parse(), Ok(Source::File("a b".into())));
        assert!("@".parse::<Source>().is_err());
    }

    #[test]
    fn a_missing_file_is_named() {
        let failure = Source::File("/no/such/file".into()).read().unwrap_err();
        assert!(failure.to_string().starts_with("cannot read the payload from /no/such/file: "));
    }
}
