//! Rules between Pods over many nodes: what is read grows with nodes and Pods, not with their product.

use aliquot_core::dra::{Node, ResourceSlice};

use super::*;
use crate::manifest::read;

/// Nodes of one zone, each with a Pod that `rule` belongs to, and a Pod `web` that waits.
struct Scene {
    manifests: Manifests,
    world: World,
    occupancy: Occupancy,
}

const APART: &str = "podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone, labelSelector: {matchLabels: \
     {app: web}}}]}";
const SPREAD: &str = "topologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, \
     labelSelector: {matchLabels: {app: web}}}]";

fn pod(name: &str, app: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: team, labels: {{app: {app}}}}}\nspec: \
         {{{spec}}}\n---\n"
    )
}

impl Scene {
    /// `of_guards` is of the Pods on nodes, `of_web` of the one that waits.
    fn of(nodes: usize, of_guards: &str, of_web: &str) -> Self {
        Self::read(&Self::text(nodes, of_guards, of_web))
    }

    fn text(nodes: usize, of_guards: &str, of_web: &str) -> String {
        let mut text = pod("web", "web", of_web);
        for number in 0..nodes {
            text.push_str(&format!(
                "apiVersion: v1\nkind: Node\nmetadata: {{name: n{number}, labels: {{zone: a, kubernetes.io/hostname: \
                 n{number}}}}}\n---\n"
            ));
            let guard = format!("nodeName: n{number}, {of_guards}");
            text.push_str(&pod(&format!("guard-{number}"), "guard", &guard));
        }
        text
    }

    fn read(text: &str) -> Self {
        let (mut manifests, problems) = read("m.yaml", text);
        assert_eq!(problems, []);
        let nodes: Vec<Node> = std::mem::take(&mut manifests.nodes);
        let (world, problems) = World::new(Vec::<ResourceSlice>::new(), Vec::new(), nodes);
        assert_eq!(problems, []);
        let occupancy = Occupancy::of(&manifests, &world, Default::default());
        Self { manifests, world, occupancy }
    }

    fn test(&self) -> NodeTest<'_> {
        let Self { manifests, world, occupancy } = self;
        NodeTest::of(manifests.pods.first(), Vec::new(), Surroundings { manifests, world, occupancy })
    }

    /// What the filters read to ask every node.
    fn reads(&self) -> usize {
        let before = self.occupancy.reads();
        let test = self.test();
        for (index, _) in numbered(&self.world) {
            let _room = test.has_room(index);
            let _obstacles = test.obstacles(index);
        }
        self.occupancy.reads() - before
    }
}

#[track_caller]
fn reads_grow_with_nodes(of_guards: &str, of_web: &str) {
    let [few, many] = [50, 400].map(|nodes| Scene::of(nodes, of_guards, of_web).reads());
    assert!(few > 0 && many <= 8 * few + 8, "{few} reads of 50 nodes, {many} of 400");
}

#[test]
fn anti_affinity_of_other_pods_is_read_once_per_pod() {
    reads_grow_with_nodes(&format!("affinity: {{{APART}}}"), "");
}

#[test]
fn spread_over_many_domains_finds_the_emptiest_once() {
    reads_grow_with_nodes("", SPREAD);
}

#[test]
fn closed_domain_names_the_first_pod_and_counts_the_rest() {
    let scene = Scene::of(3, &format!("affinity: {{{APART}}}"), "");
    let excluded = excluded(&scene.test());
    assert_eq!(excluded.len(), 3);
    assert_eq!(
        excluded[2].why,
        "pod team/guard-0 and 2 more in zone=a wants no Pods with app=web in the same zone (anti-affinity)"
    );
    let scene = Scene::of(1, &format!("affinity: {{{APART}}}"), "");
    let changes: Vec<String> = single_changes(&scene.test()).into_iter().map(|change| change.words).collect();
    assert_eq!(changes, ["delete pod team/guard-0, whose anti-affinity keeps it off"]);
}

#[test]
fn only_nodes_with_taints_are_asked_what_keeps_a_pod_off() {
    let with_taint = |name: &str| {
        format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {{kubernetes.io/hostname: {name}}}}}\nspec: \
             {{taints: [{{key: t, effect: NoSchedule}}]}}\n---\n"
        )
    };
    let reads = |free: usize| {
        let mut text = pod("web", "web", SPREAD) + &with_taint("tainted");
        for number in 0..free {
            let name = format!("n{number}");
            text.push_str(&with_taint(&name).replace("taints: [{key: t, effect: NoSchedule}]", ""));
        }
        let scene = Scene::read(&text);
        let test = scene.test();
        let before = scene.occupancy.reads();
        let kept: Vec<&str> = kept_off(&test).iter().map(|kept| kept.name).collect();
        assert_eq!(kept, ["tainted"]);
        scene.occupancy.reads() - before
    };
    assert_eq!(reads(8), reads(64));
}

#[test]
fn taints_keep_no_pod_off_that_names_its_node() {
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: n}\nspec: {taints: [{key: t, effect: NoSchedule}]}\n---\n";
    let names = |spec: &str| {
        let scene = Scene::read(&(pod("web", "web", spec) + node));
        let kept: Vec<String> = kept_off(&scene.test()).iter().map(|kept| kept.name.to_owned()).collect();
        kept
    };
    assert_eq!(names(""), ["n"]);
    assert_eq!(names("nodeName: elsewhere"), Vec::<String>::new());
}

#[test]
fn counts_of_a_group_take_no_memory_for_nodes_without_its_pods() {
    let apart = format!("affinity: {{{APART}}}");
    let placed = pod("placed", "web", "nodeName: n5");
    let scene = Scene::read(&(Scene::text(64, "", &apart) + &placed));
    let terms = scene.manifests.pods[0].rules().apart.clone();
    let ending = occupancy::EndingPods::Counted;
    let of = |namespace: &str| {
        let group = occupancy::PodGroup { namespace: namespace.to_owned(), terms: terms.clone(), ending };
        scene.occupancy.count(&group, &scene.manifests)
    };
    assert_eq!(*of("team"), occupancy::PodCounts::from([(NodeIndex(5), 1)]));
    assert_eq!(*of("elsewhere"), occupancy::PodCounts::new());
}
