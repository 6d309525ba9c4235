//! The derive macro of typed jobs. Programs use it as `geartrain::Job`.

mod attributes;
mod duration;
mod expand;
mod limits;

/// Makes a type a job: its JSON is the payload. It implements `geartrain::TypedJob`.
///
/// ```text
/// #[derive(Serialize, Deserialize, geartrain::Job)]
/// #[job(queue = "mail", klass = "welcome", timeout = "2m", backoff = "10s..1h")]
/// struct Welcome { to: String }
/// ```
///
/// | key | value | default |
/// |---|---|---|
/// | `queue` | the queue that these jobs are put into | must be given |
/// | `klass` | the name that chooses the handler | the name of the type in kebab-case: `send-invoice` |
/// | `timeout` | how long one attempt may take, such as `"2m"` or `"1h30m"` | no limit |
/// | `backoff` | the delay before retries: `"30s"`, `"10s..1h"`, `"10sx3..1h+-0.2"` | `Backoff::DEFAULT` |
/// | `retries` | how many times a job may be retried | 5 |
/// | `priority` | higher goes first | 0 |
/// | `keep_result` | how long the result is stored, such as `"25h"` | it is not stored |
/// | `crate` | the path of the crate geartrain, if it is renamed | `"::geartrain"` |
///
/// All but `queue`, `klass` and `crate` are defaults: a put may say otherwise. The type also needs serde's
/// `Serialize` and `Deserialize`. It may be a struct or an enum, and has no generic parameters.
#[proc_macro_derive(Job, attributes(job))]
pub fn derive_job(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    expand::job(&input).unwrap_or_else(|error| error.into_compile_error()).into()
}
