//! Clusters on which a Pod waits: `explain` never says that it fits, names the cause, and offers a change that places it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::ffi::OsString;
use std::fs;

use aliquot_tests::command_line::ran;
use serde_json::Value;

const BASE: &str = include_str!("infeasible.yaml");
const CASES: &str = include_str!("infeasible.txt");
/// Its number in the promise.
const CASES_MIN: usize = 36;

#[derive(Default)]
struct Case<'t> {
    name: &'t str,
    replaced: Vec<(&'t str, &'t str)>,
    /// Fields of the Pod's `spec`.
    pod: String,
    says: Option<&'t str>,
    why: Vec<&'t str>,
    absent: Vec<&'t str>,
    remedy: &'t str,
    edits: Vec<(&'t str, &'t str)>,
    manifests: String,
}

/// A claim of one device, allocated on a node.
fn claim(name: &str, node: &str) -> String {
    format!(
        "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {{name: {name}, namespace: team, resourceVersion: \
         \"1\"}}\nspec: {{devices: {{requests: [{{name: gpu, exactly: {{deviceClassName: gpu.example.com}}}}]}}}}\nstatus: \
         {{allocation: {{devices: {{results: [{{request: gpu, driver: gpu.example.com, pool: {node}, device: gpu-0}}]}}, \
         nodeSelector: {{nodeSelectorTerms: [{{matchFields: [{{key: metadata.name, operator: In, values: [{node}]}}]}}]}}}}}}\n"
    )
}

/// A Pod without devices that runs on a node.
fn running(name: &str, node: &str, cpu: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: team, labels: {{app: {name}}}}}\nspec: {{nodeName: \
         {node}, containers: [{{name: c, resources: {{requests: {{cpu: {cpu}}}}}}}]}}\nstatus: {{phase: Running}}\n"
    )
}

impl<'t> Case<'t> {
    fn of(text: &'t str) -> Self {
        let (name, lines) = text.split_once('\n').unwrap();
        let claims = "resourceClaims: [{name: gpu, resourceClaimTemplateName: one}]";
        let mut case = Self { name, pod: claims.to_owned(), ..Self::default() };
        for line in lines.lines().filter(|line| !line.is_empty()) {
            let words: Vec<&str> = line.split(' ').collect();
            match (line.split_once(": "), words.as_slice()) {
                (Some(("replace", pair)), _) => case.replaced.push(pair.split_once(" => ").unwrap()),
                (Some(("pod", spec)), _) => case.pod = format!("{spec}, {claims}"),
                (Some(("whole", spec)), _) => case.pod = spec.to_owned(),
                (Some(("says", message)), _) => case.says = Some(message),
                (Some(("why", text)), _) => case.why.push(text),
                (Some(("not", text)), _) => case.absent.push(text),
                (Some(("remedy", text)), _) => case.remedy = text,
                (Some(("edit", pair)), _) => case.edits.push(pair.split_once(" => ").unwrap()),
                (_, ["CLAIM", name, node]) => case.manifests += &format!("---\n{}", claim(name, node)),
                (_, ["RUNNING", name, node, cpu]) => {
                    case.manifests += &format!("---\n{}", running(name, node, cpu));
                }
                (Some(("apiVersion", _)), _) => case.manifests += &format!("---\n{line}\n"),
                _ => case.manifests += &format!("{line}\n"),
            }
        }
        case
    }

    fn dump(&self) -> String {
        let mut base = BASE.to_owned();
        for (from, to) in &self.replaced {
            assert!(base.contains(from), "{}: the base has no {from}", self.name);
            base = base.replace(from, to);
        }
        let condition = self.says.map_or_else(String::new, |message| {
            let message = serde_json::to_string(message).unwrap();
            format!(
                ", conditions: [{{type: PodScheduled, status: \"False\", reason: Unschedulable, message: {message}}}]"
            )
        });
        format!(
            "{base}---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p, namespace: team, resourceVersion: \"1\", labels: \
             {{app: p}}}}\nspec: {{{}}}\nstatus: {{phase: Pending{condition}}}\n{}",
            self.pod, self.manifests
        )
    }

    /// What is wrong with the answer.
    fn faults(&self) -> Vec<String> {
        let dump = self.dump();
        let (code, table) = explained(&dump, "table");
        let (_, json) = explained(&dump, "json");
        let mut faults = Vec::new();
        if code != 1 || table.contains("fits") {
            faults.push(format!("exit {code}"));
        }
        let missing = self.why.iter().filter(|why| !table.contains(**why));
        faults.extend(missing.map(|why| format!("does not say: {why}")));
        let present = self.absent.iter().filter(|text| table.contains(**text));
        faults.extend(present.map(|text| format!("says: {text}")));
        let answer: Value = serde_json::from_str(&json).unwrap_or_default();
        let remedy = answer["explanations"][0]["remedy"].as_str().unwrap_or("none");
        if self.remedy.is_empty() || !remedy.contains(self.remedy) {
            faults.push(format!("remedy: {remedy}; expected {}", self.remedy));
        }
        if !self.edits.is_empty() {
            let mut edited = dump.clone();
            for (from, to) in &self.edits {
                assert!(edited.contains(from), "{}: the dump has no {from}", self.name);
                edited = edited.replace(from, to);
            }
            let (code, after) = explained(&edited, "table");
            if code != 0 {
                faults.push(format!("does not fit with the change:\n{after}"));
            }
        }
        if !faults.is_empty() {
            faults.push(table);
        }
        faults
    }
}

fn explained(dump: &str, form: &str) -> (u8, String) {
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    fs::write(file.path(), dump).unwrap();
    let path = file.path().display().to_string();
    let words = ["aliquot", "explain", "-f", &path, "-o", form, "team/p"];
    let ran = ran(words.map(OsString::from));
    assert!(!ran.err.contains("error: "), "{}\n{dump}", ran.err);
    (ran.code, ran.out)
}

#[test]
fn explain_of_a_pod_that_waits_names_cause_and_remedy() {
    let cases: Vec<Case<'_>> = CASES.split("\n=== ").skip(1).map(Case::of).collect();
    assert!(cases.len() >= CASES_MIN, "{} cases", cases.len());
    let faults = cases.iter().map(|case| (case.name, case.faults()));
    let faults: Vec<String> = faults
        .filter(|(_, faults)| !faults.is_empty())
        .map(|(name, faults)| format!("{name}: {}", faults.join("\n  ")))
        .collect();
    assert!(faults.is_empty(), "{} of {} cases:\n{}", faults.len(), cases.len(), faults.join("\n"));
}
