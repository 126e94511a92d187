//! Errors of the API client as the agent's errors: what failed, and what the caller does about it.

use aliquot_core::disposition::Disposition;

use crate::error_text::chain;
use crate::ports::AgentError;

/// Longest text of a server or a library that a message repeats.
const TEXT_MAX: usize = 400;

/// One call, in the words of RBAC.
#[derive(Clone, Copy, Debug)]
pub(super) struct ApiCall<'a> {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`.
    pub(super) verb: &'static str,
    /// Resource with its group: `resourceslices.resource.k8s.io`.
    pub(super) resource: &'static str,
    /// Name of the object, with its namespace; empty for a list.
    pub(super) object: &'a str,
}

// === impl ApiCall ===

impl ApiCall<'_> {
    /// The error of this call.
    pub(super) fn failed(self, error: &::kube::Error) -> AgentError {
        let Self { verb, resource, object } = self;
        let subject =
            if object.is_empty() { resource.to_owned() } else { format!("{resource} {}", printable(object)) };
        let ::kube::Error::Api(status) = error else {
            return AgentError {
                message: format!(
                    "{subject}: {verb} failed: the API server does not answer ({}); check the network and the server",
                    printable(&chain(error))
                ),
                disposition: Disposition::Retry,
            };
        };
        let text = printable(&status.message);
        let (message, disposition) = match status.code {
            401 => (
                format!("{subject}: {verb} failed: the server refuses the credentials ({text}); renew them"),
                Disposition::Broken,
            ),
            403 => (
                format!(
                    "{subject}: {verb} is forbidden ({text}); grant the verb `{verb}` on `{resource}` by RBAC, \
                     or check admission policies"
                ),
                Disposition::Broken,
            ),
            404 => (format!("{subject}: {verb} failed: found nothing ({text})"), Disposition::Refuse),
            400 | 405 | 413 | 415 | 422 => {
                (format!("{subject}: {verb} failed: the server rejects it ({text})"), Disposition::Broken)
            }
            code => (
                format!("{subject}: {verb} failed: found status {code} ({text}); the call is repeated"),
                Disposition::Retry,
            ),
        };
        AgentError { message, disposition }
    }

    /// The error of this call when it took too long.
    pub(super) fn timed_out(self, limit: std::time::Duration) -> AgentError {
        let Self { verb, resource, object } = self;
        AgentError {
            message: format!(
                "{resource} {}: {verb} failed: no answer within {} s; check the network and the API server",
                printable(object),
                limit.as_secs()
            ),
            disposition: Disposition::Retry,
        }
    }
}

/// The status code of an answer; `None` for errors of the connection.
pub(super) fn code(error: &::kube::Error) -> Option<u16> {
    match error {
        ::kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// A text from outside as one printable line of bounded length.
pub(super) fn printable(text: &str) -> String {
    crate::printable::line_of(&text.replace(['\n', '\t', '\r'], " "), TEXT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(code: u16) -> ::kube::Error {
        let mut status = ::kube::core::Status::failure("no\u{1b}[31m\nluck", "Reason");
        status.code = code;
        ::kube::Error::Api(Box::new(status))
    }

    #[test]
    fn dispositions_follow_the_status_code() {
        let call = ApiCall { verb: "create", resource: "resourceslices.resource.k8s.io", object: "a" };
        for (code, disposition) in [
            (401, Disposition::Broken),
            (403, Disposition::Broken),
            (404, Disposition::Refuse),
            (409, Disposition::Retry),
            (422, Disposition::Broken),
            (429, Disposition::Retry),
            (500, Disposition::Retry),
            (503, Disposition::Retry),
        ] {
            let error = call.failed(&api(code));
            assert_eq!(error.disposition, disposition, "{code}");
            assert!(!error.message.contains(['\u{1b}', '\n']), "{}", error.message);
        }
        assert!(call.failed(&api(403)).message.contains("grant the verb `create` on `resourceslices"));
    }
}
