//! Numbers and lists of names in documents.

use geartrain_core::{Seconds, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

/// A number, written without a decimal point if it is whole.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
pub struct Number(pub f64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Up to 2^53 a double is exactly the integer that it looks like.
        if self.0.fract() == 0.0 && self.0.abs() <= 9_007_199_254_740_992.0 {
            serializer.serialize_i64(self.0 as i64)
        } else {
            serializer.serialize_f64(self.0)
        }
    }
}

impl From<Timestamp> for Number {
    fn from(time: Timestamp) -> Number {
        Number(time.get())
    }
}

impl From<Seconds> for Number {
    fn from(span: Seconds) -> Number {
        Number(span.get())
    }
}

/// The names of a list as texts.
pub fn texts<T: ToString>(names: &[T]) -> Vec<String> {
    names.iter().map(T::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_have_no_decimal_point() {
        for (number, text) in [(5.0, "5"), (-2.0, "-2"), (2.7, "2.7"), (0.0, "0"), (1e300, "1e+300")] {
            assert_eq!(serde_json::to_string(&Number(number)).unwrap(), text);
        }
    }
}
