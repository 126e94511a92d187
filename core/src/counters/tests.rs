use super::*;
use crate::catalogue::{COUNTERS_MAX, Catalogue};
use crate::id::TemplateName;
use crate::partition::{Isolation, Placement, PlacementName, ShareSupport, Template};
use crate::units::{Bytes, Cores, Fraction};

/// What is published for each embedded model that has partitions.
const GOLDEN: &[(&str, &str)] = &[
    ("huawei-310p-24gb", "ai-core ai-cpu jpegd vg0 vg1 vg2 vg3"),
    ("huawei-310p-48gb", "ai-core ai-cpu jpegd vg0 vg1 vg2 vg3"),
    ("huawei-310p-duo-24gb", "ai-core ai-cpu jpegd vg0 vg1 vg2 vg3"),
    ("huawei-310p-duo-48gb", "ai-core ai-cpu jpegd vg0 vg1 vg2 vg3"),
    ("huawei-910a-30c", "ai-core"),
    ("huawei-910a-32c", "ai-core"),
    ("huawei-910b1", "ai-core"),
    ("huawei-910b2", "ai-core"),
    ("huawei-910b2c", "ai-core"),
    ("huawei-910b3", "ai-core"),
    ("huawei-910b4", "ai-core jpegd"),
    ("huawei-910b4-1", "ai-core"),
    ("huawei-910c-20c", "ai-core"),
    ("huawei-910c-24c", "ai-core"),
    ("nvidia-a100-40gb", "jpeg-engines mem0 mem1 mem2 mem3 mem4 mem5 mem6"),
    ("nvidia-a100-80gb", "jpeg-engines mem0 mem1 mem2 mem3 mem4 mem5 mem6"),
    ("nvidia-a30-24gb", "jpeg-engines mem0 mem1 mem2 mem3"),
    ("nvidia-a800-40gb", "jpeg-engines mem0 mem1 mem2 mem3 mem4 mem5 mem6"),
    ("nvidia-a800-80gb", "jpeg-engines mem0 mem1 mem2 mem3 mem4 mem5 mem6"),
    ("nvidia-b200-180gb", "mem0 mem1 mem2 mem3 mem4 mem5 mem6 ofa-engines"),
    ("nvidia-b300-269gb", "media mem0 mem1 mem2 mem3 mem4 mem5 mem6"),
    ("nvidia-gb200-186gb", "mem0 mem1 mem2 mem3 mem4 mem5 mem6 ofa-engines"),
    ("nvidia-gb300-278gb", "media mem0 mem1 mem2 mem3 mem4 mem5 mem6"),
    ("nvidia-gh200-144gb", "mem0 mem1 mem2 mem3 mem4 mem5 mem6 ofa-engines"),
    ("nvidia-h100-80gb-pcie", "mem0 mem1 mem2 mem3 mem4 mem5 mem6 ofa-engines"),
    ("nvidia-h100-80gb-sxm", "mem0 mem1 mem2 mem3 mem4 mem5 mem6 ofa-engines"),
    ("nvidia-h100-96gb", "mem0 mem1 mem2 mem3 mem4 mem5 mem6 ofa-engines"),
    ("nvidia-h100-nvl-94gb", "mem0 mem1 mem2 mem3 mem4 mem5 mem6 ofa-engines"),
    ("nvidia-h20-3e-141gb", "mem0 mem1 mem2 mem3 mem4 mem5 mem6 ofa-engines"),
    ("nvidia-h20-96gb", "mem0 mem1 mem2 mem3 mem4 mem5 mem6 ofa-engines"),
    ("nvidia-h200-141gb", "mem0 mem1 mem2 mem3 mem4 mem5 mem6 ofa-engines"),
    ("nvidia-h800-80gb-pcie", "mem0 mem1 mem2 mem3 mem4 mem5 mem6 ofa-engines"),
    ("nvidia-h800-80gb-sxm", "mem0 mem1 mem2 mem3 mem4 mem5 mem6 ofa-engines"),
    ("nvidia-h800-nvl-94gb", "mem0 mem1 mem2 mem3 mem4 mem5 mem6 ofa-engines"),
    ("nvidia-rtx-pro-6000", "decoders mem0 mem3 mem6 mem9 ofa-engines"),
];

fn tables() -> Vec<(String, PartitionTable)> {
    let catalogue = Catalogue::embedded();
    let tables = catalogue.models().iter().filter_map(|m| Some((m.id.to_string(), m.table()?.clone())));
    tables.collect()
}

#[test]
fn the_published_counters_of_every_model_are_these() {
    let names = |table: &PartitionTable| {
        let binding = binding_counters(table);
        assert!(binding.witnesses().len() <= COUNTERS_MAX);
        binding.witnesses().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(" ")
    };
    let got: Vec<(String, String)> = tables().iter().map(|(m, table)| (m.clone(), names(table))).collect();
    let golden: Vec<(String, String)> =
        GOLDEN.iter().map(|(m, c)| ((*m).to_owned(), (*c).to_owned())).collect();
    assert_eq!(got, golden);
}

/// Every set of parts that fits by the published counters, each visited once; parts that are copies of each other are
/// taken in order.
struct Exhaustive {
    published: Vec<Vec<u64>>,
    all: Vec<Vec<u64>>,
    copy_of_the_one_before: Vec<bool>,
    all_totals: Vec<u64>,
    memory: Vec<u64>,
    sets: u64,
    /// Most memory of a set.
    most: u64,
}

impl Exhaustive {
    fn new(table: &PartitionTable, binding: &BindingCounters) -> (Self, Vec<u64>) {
        let mut parts = vec![(table.totals.clone(), 0)];
        parts.extend(table.partitions().map(|(t, p)| (t.consumes.plus(&p.consumes).unwrap(), t.memory.0)));
        parts.sort();
        let (vectors, memory): (Vec<CounterVector>, Vec<u64>) = parts.into_iter().unzip();
        let numbers = |v: &CounterVector, of: &CounterVector| -> Vec<u64> {
            of.iter().map(|(name, _)| v.get(name)).collect()
        };
        let this = Self {
            published: vectors.iter().map(|v| numbers(&binding.published(v), binding.totals())).collect(),
            all: vectors.iter().map(|v| numbers(v, &table.totals)).collect(),
            copy_of_the_one_before: (0..vectors.len())
                .map(|i| i > 0 && (&vectors[i], memory[i]) == (&vectors[i - 1], memory[i - 1]))
                .collect(),
            all_totals: numbers(&table.totals, &table.totals),
            memory,
            sets: 0,
            most: 0,
        };
        (this, numbers(binding.totals(), binding.totals()))
    }

    fn visit(&mut self, from: usize, room: &[u64], used: &[u64], memory: u64, last: Option<usize>) {
        self.sets += 1;
        self.most = self.most.max(memory);
        for i in from..self.all.len() {
            if self.copy_of_the_one_before[i] && last != Some(i - 1) {
                continue;
            }
            let Some(room) = room
                .iter()
                .zip(&self.published[i])
                .map(|(r, t)| r.checked_sub(*t))
                .collect::<Option<Vec<_>>>()
            else {
                continue;
            };
            let used: Vec<u64> = used.iter().zip(&self.all[i]).map(|(u, t)| u + t).collect();
            let fits = used.iter().zip(&self.all_totals).all(|(u, total)| u <= total);
            assert!(fits, "a set fits by the published counters alone: {used:?} of {:?}", self.all_totals);
            self.visit(i + 1, &room, &used, memory + self.memory[i], Some(i));
        }
    }
}

#[test]
fn with_the_published_counters_exactly_the_same_sets_fit() {
    for (model, table) in tables() {
        let binding = binding_counters(&table);
        let (mut exhaustive, room) = Exhaustive::new(&table, &binding);
        let nothing = vec![0; exhaustive.all_totals.len()];
        exhaustive.visit(0, &room, &nothing, 0, None);
        assert!(exhaustive.sets > 5, "{model}: {}", exhaustive.sets);
        assert_eq!(most_memory(&table, &binding), Some(Bytes(exhaustive.most)), "{model}");
    }
}

/// Tables of a few templates with amounts drawn small, so that sets are bound by everything in turn.
#[test]
fn most_memory_of_a_random_table_is_that_of_its_best_set() {
    let mut seed = 0x5eed_u64;
    let mut below = |bound: u64| {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (seed >> 33) % bound
    };
    let mut several = 0;
    for round in 0..300 {
        let consumes = (0..4).map(|_| {
            let takes = [below(3), 1 + below(3), below(2)];
            (CounterVector::new((0..).map(counter).zip(takes)), Bytes((1 + below(9)) << 20))
        });
        let templates: Vec<Template> = consumes
            .enumerate()
            .map(|(number, (consumes, memory))| Template { memory, ..template(number, consumes, 3) })
            .collect();
        let totals = CounterVector::new((0..).map(counter).zip([3 + below(3), 4 + below(3), 2 + below(3)]));
        let table = PartitionTable { templates, totals };
        let binding = binding_counters(&table);
        let (mut exhaustive, room) = Exhaustive::new(&table, &binding);
        let nothing = vec![0; exhaustive.all_totals.len()];
        exhaustive.visit(0, &room, &nothing, 0, None);
        assert_eq!(most_memory(&table, &binding), Some(Bytes(exhaustive.most)), "{round}: {table:?}");
        several += usize::from(table.templates.iter().all(|t| t.memory.0 < exhaustive.most));
    }
    assert!(several > 200, "{several}");
}

#[test]
fn every_published_counter_has_a_set_that_only_it_forbids() {
    for (model, table) in tables() {
        let binding = binding_counters(&table);
        for (counter, witness) in binding.witnesses() {
            let Witness::Parts(parts) = witness else { panic!("{model}: {counter} is undecided") };
            let sum = parts.iter().fold(CounterVector::default(), |sum, part| {
                let takes = match part {
                    Part::Partition { template, placement } => {
                        table.consumption(template, placement).unwrap()
                    }
                    Part::Card | Part::Slot { .. } => table.totals.clone(),
                };
                sum.plus(&takes).unwrap()
            });
            assert!(sum.get(counter) > table.totals.get(counter), "{model} {counter}");
            let others = binding.published(&sum).restricted(|name| name != counter);
            assert_eq!(others.first_excess(binding.totals()), None, "{model} {counter}: {parts:?}");
        }
    }
}

fn counter(number: usize) -> CounterName {
    CounterName::new(format!("c{number}")).unwrap()
}

fn template(number: usize, consumes: CounterVector, placements: usize) -> Template {
    let place = |number: usize| Placement {
        name: PlacementName(number.to_string()),
        consumes: CounterVector::default(),
    };
    Template {
        name: TemplateName::new(format!("t{number}")).unwrap(),
        fraction: Fraction::WHOLE,
        isolation: Isolation::Hardware,
        memory: Bytes::MIB,
        cores: Cores::ALL,
        extra_capacity: BTreeMap::new(),
        consumes,
        placements: (0..placements).map(place).collect(),
        vendor_profile: None,
        aliases: Vec::new(),
        shareable: ShareSupport::No,
    }
}

/// Twelve of the 24 alike fit by `c1`, and `c0` has room for as many; no sum shows it, only trying all of them does. Two
/// more take of `c1` alone, so that it binds.
fn slow_table() -> PartitionTable {
    let alike = (0..24).map(|i| CounterVector::new([(counter(0), 100_000), (counter(1), 100_000 + i)]));
    let more = (0..2).map(|_| CounterVector::new([(counter(1), 700_000)]));
    let templates = alike.chain(more).enumerate().map(|(number, consumes)| template(number, consumes, 1));
    PartitionTable {
        templates: templates.collect(),
        totals: CounterVector::new([(counter(0), 1_249_000), (counter(1), 1_250_000)]),
    }
}

#[test]
fn a_table_built_to_be_slow_keeps_its_counters() {
    let binding = binding_counters(&slow_table());
    let undecided: Vec<&str> = binding
        .witnesses()
        .filter(|(_, w)| **w == Witness::Undecided)
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!((binding.witnesses().len(), undecided), (2, vec!["c0"]));
    // Where the search for memory ends at its bound too, there is room for everything.
    assert!(most_memory(&slow_table(), &binding) >= Bytes::from_mib(12));
    let mut free = slow_table();
    free.templates[0].consumes = CounterVector::default();
    assert_eq!(most_memory(&free, &binding_counters(&free)), None, "it fits beside the whole card");
}
