//! Names of Pods and claims on the command line, as kubectl has them: `NAME`, `NAMESPACE/NAME`, `KIND/NAME`.

/// Kinds that are named, each with the words that kubectl takes for it.
const KINDS: [(&str, &[&str]); 2] =
    [("pod", &["pod", "pods", "po"]), ("claim", &["claim", "claims", "resourceclaim", "resourceclaims"])];

/// API group of claims, which kubectl takes behind the kind.
const CLAIM_GROUP: &str = ".resource.k8s.io";

/// Whether an object that is labelled `KIND NAMESPACE/NAME` is the one of this name.
pub(super) fn is_named(label: &str, name: &str) -> bool {
    let (kind, object) = label.split_once(' ').unwrap_or(("", label));
    let plain = object.split_once('/').map_or(object, |(_, plain)| plain);
    // A namespace may be called as a kind is.
    let of_kind = |(word, wanted): (&str, &str)| kind_of(word) == Some(kind) && wanted == plain;
    object == name || plain == name || name.split_once('/').is_some_and(of_kind)
}

/// Whether an object with this label lies in a namespace; `None`: in any.
pub(super) fn lies_in(label: &str, namespace: Option<&str>) -> bool {
    let object = label.split_once(' ').map_or(label, |(_, object)| object);
    namespace.is_none_or(|wanted| object.split_once('/').is_some_and(|(found, _)| found == wanted))
}

/// Kind and name, as `-o name` of kubectl prints them.
pub(super) fn printed(label: &str) -> String {
    let (kind, object) = label.split_once(' ').unwrap_or(("", label));
    let plain = object.split_once('/').map_or(object, |(_, plain)| plain);
    let kind = if kind == "claim" { format!("resourceclaim{CLAIM_GROUP}") } else { kind.to_owned() };
    format!("{kind}/{plain}")
}

fn kind_of(word: &str) -> Option<&'static str> {
    let word = word.to_ascii_lowercase();
    let plain = word.split_once(CLAIM_GROUP).map_or(word.as_str(), |(plain, _)| plain);
    KINDS.iter().find(|(_, words)| words.contains(&plain)).map(|(kind, _)| *kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_is_named_by_kind_namespace_or_alone() {
        for name in ["a", "team/a", "pod/a", "po/a", "Pods/a"] {
            assert!(is_named("pod team/a", name), "{name}");
        }
        for name in ["b", "other/a", "claim/a", "resourceclaim/a", "pod/team", "deployment/a", "/a"] {
            assert!(!is_named("pod team/a", name), "{name}");
        }
        for name in ["claim/c", "resourceclaims/c", "resourceclaims.resource.k8s.io/c", "team/c", "c"] {
            assert!(is_named("claim team/c", name), "{name}");
        }
        // A namespace that is called as a kind is.
        assert!(is_named("claim pod/c", "pod/c"));
        assert!(lies_in("pod team/a", Some("team")) && lies_in("pod team/a", None));
        assert!(!lies_in("pod team/a", Some("tea")));
        assert_eq!(printed("pod team/a"), "pod/a");
        assert_eq!(printed("claim team/c"), "resourceclaim.resource.k8s.io/c");
    }
}
