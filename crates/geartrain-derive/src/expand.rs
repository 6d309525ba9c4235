//! The implementation of the trait.

use std::time::Duration;

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::{Data, DeriveInput, Error};

use crate::attributes::{JobAttributes, check_name};

pub(crate) fn job(input: &DeriveInput) -> syn::Result<TokenStream> {
    let name = &input.ident;
    if let Data::Union(data) = &input.data {
        let why = "a union cannot be a job: serde cannot serialize it; use a struct or an enum";
        return Err(Error::new_spanned(data.union_token, why));
    }
    if !input.generics.params.is_empty() {
        let why = "a job cannot have generic parameters: one klass names one type without borrowed data";
        return Err(Error::new_spanned(&input.generics, why));
    }
    let JobAttributes { queue, klass, timeout, backoff, retries, priority, keep_result, krate } =
        JobAttributes::of(&input.attrs)?;
    let Some(queue) = queue else {
        let why = format!("{name} names no queue: add #[job(queue = \"…\")]");
        return Err(Error::new_spanned(name, why));
    };
    let klass = match klass {
        Some(klass) => klass.value(),
        None => kebab_case(&name.unraw().to_string()),
    };
    if let Some(why) = check_name(&klass) {
        return Err(Error::new_spanned(name, format!("{why}: add #[job(klass = \"…\")]")));
    }
    let krate = krate.map_or_else(|| quote!(::geartrain), ToTokens::into_token_stream);
    let defaults = [
        priority.map(|number| quote!(priority: Some(#number))),
        retries.map(|number| quote!(retries: Some(#number))),
        timeout.map(|span| field(&quote!(timeout), span)),
        keep_result.map(|span| field(&quote!(keep_result), span)),
        backoff.map(|(first, factor, max, jitter)| {
            quote!(backoff: Some(#krate::Backoff::in_seconds(#first, #factor, #max, #jitter)))
        }),
    ];
    let defaults = defaults.into_iter().flatten();
    Ok(quote! {
        #[automatically_derived]
        impl #krate::worker::Job for #name {
            const QUEUE: &'static str = #queue;
            const KLASS: &'static str = #klass;
            #[allow(clippy::needless_update)]
            const DEFAULTS: #krate::worker::JobDefaults = {
                use ::core::option::Option::Some;
                #krate::worker::JobDefaults { #(#defaults,)* ..#krate::worker::JobDefaults::NONE }
            };
        }
    })
}

fn field(name: &TokenStream, span: Duration) -> TokenStream {
    let (seconds, nanoseconds) = (span.as_secs(), span.subsec_nanos());
    quote!(#name: Some(::core::time::Duration::new(#seconds, #nanoseconds)))
}

/// `SendInvoice` becomes `send-invoice`, `HTTPCall` `http-call`, and `Utf8_check` `utf8-check`.
fn kebab_case(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    let mut text = String::new();
    for (index, letter) in letters.iter().enumerate() {
        if *letter == '_' {
            text.push('-');
            continue;
        }
        let is_after = |test: fn(char) -> bool| index > 0 && test(letters[index - 1]);
        let is_end_of_acronym =
            is_after(char::is_uppercase) && letters.get(index + 1).is_some_and(|next| next.is_lowercase());
        let begins_word = letter.is_uppercase()
            && (is_after(char::is_lowercase) || is_after(char::is_numeric) || is_end_of_acronym);
        if begins_word {
            text.push('-');
        }
        text.extend(letter.to_lowercase());
    }
    text.trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_klass_is_the_name_of_its_type_in_kebab_case() {
        for (name, klass) in [
            ("Welcome", "welcome"),
            ("SendInvoice", "send-invoice"),
            ("HTTPCall", "http-call"),
            ("FetchURL", "fetch-url"),
            ("V2Report", "v2-report"),
            ("Utf8Check", "utf8-check"),
            ("send_mail", "send-mail"),
            ("_Hidden", "hidden"),
            ("X", "x"),
            ("ÄrgerBericht", "ärger-bericht"),
        ] {
            assert_eq!(kebab_case(name), klass);
        }
    }
}
