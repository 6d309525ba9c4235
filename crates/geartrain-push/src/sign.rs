//! Signatures of Standard Webhooks: HMAC-SHA256 over id, timestamp and body.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use geartrain_core::base64;
use ring::hmac;

/// The prefix of a symmetric secret, and the bytes that it may have.
const PREFIX: &str = "whsec_";
const BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// A secret of 64 bytes takes 94 characters. The rest is room for line breaks.
const FILE_BYTES_MAX: u64 = 1_024;

/// A secret that requests are signed with: `whsec_` and 24 to 64 bytes in base64.
///
/// ```
/// use geartrain_push::Secret;
/// assert!(Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").is_ok());
/// assert!(Secret::new("hunter2").is_err());
/// ```
#[derive(Clone)]
pub struct Secret(hmac::Key);

/// A secret cannot be used. The text never contains the secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The file cannot be read.
    #[error("cannot read the secret file {}: {source}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file has something else in it.
    #[error("the secret file {} is not usable: {source}", file.display())]
    BadFile {
        /// The file.
        file: PathBuf,
        /// What is wrong with its text.
        source: Box<SecretError>,
    },
    /// It is a key pair of the asymmetric scheme.
    #[error("it is a key of the asymmetric scheme; use a symmetric secret: {PREFIX}<base64>")]
    Asymmetric,
    /// It has no prefix, or is not base64.
    #[error("a secret is written {PREFIX}<base64>")]
    Malformed,
    /// It is too short or too long.
    #[error("a secret has 24 to 64 bytes, this one has {bytes}")]
    Length {
        /// How many it has.
        bytes: usize,
    },
}

impl Secret {
    /// A secret from its text form.
    pub fn new(text: &str) -> Result<Secret, SecretError> {
        let Some(digits) = text.strip_prefix(PREFIX) else {
            let asymmetric = text.starts_with("whsk_") || text.starts_with("whpk_");
            return Err(if asymmetric { SecretError::Asymmetric } else { SecretError::Malformed });
        };
        let key = base64::decode(digits).ok_or(SecretError::Malformed)?;
        if !BYTES.contains(&key.len()) {
            return Err(SecretError::Length { bytes: key.len() });
        }
        Ok(Secret(hmac::Key::new(hmac::HMAC_SHA256, &key)))
    }

    /// A secret from a file. Whitespace around it, such as a final line break, does not belong to it.
    pub fn from_file(file: impl AsRef<Path>) -> Result<Secret, SecretError> {
        let file = file.as_ref();
        let mut text = String::new();
        std::fs::File::open(file)
            .and_then(|open| open.take(FILE_BYTES_MAX).read_to_string(&mut text))
            .map_err(|source| SecretError::Unreadable { file: file.to_owned(), source })?;
        Secret::new(text.trim())
            .map_err(|error| SecretError::BadFile { file: file.to_owned(), source: Box::new(error) })
    }

    /// The signature in the form of the header `webhook-signature`: `v1,<base64>`.
    fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(format!("{id}.{timestamp}.").as_bytes());
        context.update(body);
        format!("v1,{}", base64::encode(context.sign().as_ref()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The signatures with all secrets, separated by spaces: the value of `webhook-signature`.
pub(crate) fn signatures(secrets: &[Secret], id: &str, timestamp: u64, body: &[u8]) -> String {
    let signatures: Vec<String> = secrets.iter().map(|secret| secret.sign(id, timestamp, body)).collect();
    signatures.join(" ")
}

#[cfg(test)]
mod tests {
    use geartrain_testkit::peers::Scratch;

    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    /// The vector that the reference libraries of Standard Webhooks test themselves with. Computed again with
    /// Python: `hmac.new(b64decode(secret), b"id.timestamp.body", sha256)`.
    #[test]
    fn the_signature_is_that_of_the_reference_libraries() {
        let secret = Secret::new(SECRET).unwrap();
        let (id, body) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", br#"{"test": 2432232314}"#);
        let signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(secret.sign(id, 1_614_265_330, body), signature);
        let both = signatures(&[secret.clone(), secret], id, 1_614_265_330, body);
        assert_eq!(both, format!("{signature} {signature}"));
    }

    #[test]
    fn a_secret_that_is_none_is_refused_by_reason_and_not_repeated() {
        for (text, reason) in [
            ("", "a secret is written whsec_<base64>"),
            ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "a secret is written whsec_<base64>"),
            ("whsec_not*base64", "a secret is written whsec_<base64>"),
            ("whsec_c2hvcnQ=", "a secret has 24 to 64 bytes, this one has 5"),
            (
                "whsk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
                "it is a key of the asymmetric scheme; use a symmetric secret: whsec_<base64>",
            ),
        ] {
            assert_eq!(Secret::new(text).unwrap_err().to_string(), reason, "{text}");
        }
        assert_eq!(format!("{:?}", Secret::new(SECRET).unwrap()), "Secret(…)");
    }

    #[test]
    fn a_secret_file_may_end_with_a_line_break() {
        let scratch = Scratch::new("secret");
        let file = scratch.path().join("secret");
        assert!(Secret::from_file(&file).unwrap_err().to_string().starts_with("cannot read the secret file"));
        std::fs::write(&file, format!("{SECRET}\n")).unwrap();
        assert!(Secret::from_file(&file).is_ok());
        std::fs::write(&file, "hunter2").unwrap();
        let error = Secret::from_file(&file).unwrap_err().to_string();
        assert!(error.ends_with("is not usable: a secret is written whsec_<base64>"), "{error}");
    }
}
