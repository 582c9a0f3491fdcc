// Every order in which a producer and a consumer may learn of a key that goes alone (plugin/alone.h): some steps side by side that each send one
// tensor under it, and what the ends say to each other of it. The state machines are the plugin's own; what carries between them is modelled as
// flags and queues. Told how a fault makes one end behave, it
// counts what would hang; with no argument, nothing may.
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "alone.h"

namespace {

using namespace sealane_tensorflow;

constexpr char kKey[] = "key";
constexpr size_t kRoom = 5000;  // Announced once before the steps begin.

struct Kind {
  const char* name;
  bool plain;
  size_t bytes;
};
constexpr Kind kKinds[] = {{"small", true, 8}, {"string", false, 100}, {"strings", false, 9000}, {"fits", true, kRoom}, {"grown", true, 9000}};

struct Fault {
  bool believes = false;  // The consumer takes a tensor that came alone for the producer's agreement.
  bool hides = false;     // What Sealane has no type of goes as if its key had no agreement.
  bool gives_up = false;  // Memory that is too short is not asked for again with the room of today.
  bool hastes = false;    // The producer agrees while tensors are out whole.
  bool forgets = false;   // The consumer tells the producer of a key, and waits in bundles alone for what it asked for before.
};

struct Tensor {
  const Kind* kind;
  // At the producer.
  bool staged = false, described = false;
  Form form = Form::kWhole;
  Parts out = {};
  std::optional<uint64_t> agreement;  // It keeps this hello's from being said.
  // At the consumer.
  enum { kNone, kAwaited, kCame } entry = kNone;
  bool begun = false, flush = false, asked = false, parked = false, done = false;
  AloneWait wait;
};

struct Message {
  enum { kAlone, kHello, kAgreed } kind;
  uint64_t hello;
  size_t room;
};

// The whole world; copied for each way that it may go on.
struct World {
  AloneSends sends;
  AloneAsks asks;
  uint64_t hello = 1;  // The producer's.
  std::vector<Tensor> tensors;
  std::deque<Message> to_producer, to_consumer;
  int hellos = 0, losses = 0;
  bool others = false;  // Other tensors of these steps come in bundles: they are asked for always.

  bool receiving(const Tensor& tensor) const { return others || tensor.entry == Tensor::kAwaited; }
};

std::string Show(const World& world) {
  AloneAsks asks = world.asks;
  const AloneAsks::Known known = asks.Of(kKey);
  std::string shown = std::to_string(known.room) + (known.agreed ? "a" : "-") + (known.told ? "t" : "-") + std::to_string(asks.hello()) + "|" +
                      std::to_string(world.hello) + "," + std::to_string(world.hellos) + std::to_string(world.losses) + ":";
  for (const Kind& kind : kKinds) shown += std::to_string(static_cast<int>(world.sends.FormOf(kKey, kind.plain, kind.bytes)));
  shown += std::to_string(static_cast<int>(world.sends.FormOf(kKey, true, 9001)));
  for (const Tensor& tensor : world.tensors) {
    shown += std::string("\n") + tensor.kind->name + " ";
    for (bool each : {tensor.staged, tensor.described, tensor.out.entry, tensor.out.data, tensor.agreement.has_value(), tensor.begun, tensor.flush,
                      tensor.asked, tensor.parked, tensor.done, tensor.wait.started()})
      shown += each ? '1' : '0';
    shown += std::to_string(static_cast<int>(tensor.form)) + std::to_string(static_cast<int>(tensor.entry)) + "/" + std::to_string(tensor.wait.asked());
  }
  for (const auto* queue : {&world.to_producer, &world.to_consumer}) {
    shown += "\n";
    for (const Message& each : *queue)
      shown += std::to_string(each.kind) + "." + std::to_string(each.hello) + "." + std::to_string(each.room) + " ";
  }
  return shown;
}

class Model {
 public:
  Model(Fault fault, bool others) : fault_(fault), others_(others) {}

  // Tries all orders for these kinds of tensors.
  void Try(const std::vector<const Kind*>& kinds) {
    World world;
    world.others = others_;
    world.asks.Doubt(1);
    world.asks.Announced(kKey, kRoom);
    for (const Kind* kind : kinds) {
      world.tensors.emplace_back();
      world.tensors.back().kind = kind;
    }
    std::set<size_t> seen;
    std::vector<World> open = {world};
    std::hash<std::string> hash;
    while (!open.empty()) {
      const World now = std::move(open.back());
      open.pop_back();
      if (!seen.insert(hash(Show(now))).second) continue;
      ++states;
      const size_t before = open.size();
      Next(now, &open);
      Check(now, open.size() == before);
    }
  }

  size_t states = 0;
  size_t stuck = 0;   // Waits that would last for ever, which the plugin's sweeps see and end.
  size_t unseen = 0;  // Those that they do not see.
  std::string shown;  // The first state of those.

 private:
  void Next(const World& now, std::vector<World>* open) {
    auto then = [&](auto happens) {
      World next = now;
      happens(next);
      open->push_back(std::move(next));
    };
    for (size_t i = 0; i < now.tensors.size(); ++i) {
      const Tensor& tensor = now.tensors[i];
      if (!tensor.staged) then([&](World& world) { Stage(world, world.tensors[i]); });
      if (tensor.done) continue;
      if (!tensor.begun) then([&](World& world) { Begin(world, world.tensors[i]); });
      if (tensor.flush) then([&](World& world) { Flush(world, world.tensors[i]); });
      if (tensor.out.entry && now.receiving(tensor)) then([&](World& world) { BundleComes(world, world.tensors[i]); });
      if (tensor.out.data && tensor.asked) then([&](World& world) { DataComes(world, world.tensors[i]); });
    }
    if (!now.to_producer.empty()) then([&](World& world) { HearProducer(world); });
    if (!now.to_consumer.empty()) then([&](World& world) { HearConsumer(world); });
    if (!now.to_consumer.empty() && now.losses == 0) {
      then([&](World& world) {
        ++world.losses;
        world.to_consumer.pop_front();
      });
    }
    if (!now.to_producer.empty() && now.to_producer.front().kind == Message::kAlone && now.losses == 0) {
      then([&](World& world) {
        ++world.losses;
        world.to_producer.pop_front();
        world.asks.NotTold(kKey);
      });
    }
    if (now.hellos == 0) then([&](World& world) { SayHello(world); });
  }

  void Check(const World& now, bool over) {
    for (const Tensor& tensor : now.tensors) {
      if (!tensor.staged || !tensor.begun || tensor.done || tensor.flush) continue;
      const bool meet = Meet(tensor.out, {now.receiving(tensor), tensor.asked});
      if (!meet && stuck++ == 0) shown = Show(now);
      if (meet && over && unseen++ == 0) shown = Show(now);
    }
  }

  // --- The producer ---

  void Stage(World& world, Tensor& tensor) {
    tensor.staged = true;
    const bool hidden = fault_.hides && !tensor.kind->plain;
    tensor.form = hidden ? AloneSends().FormOf(kKey, false, tensor.kind->bytes) : world.sends.FormOf(kKey, tensor.kind->plain, tensor.kind->bytes);
    tensor.out = {tensor.form != Form::kAlone, tensor.form != Form::kWhole};
    tensor.described = tensor.form == Form::kAlone;
  }

  void HearProducer(World& world) {
    const Message message = world.to_producer.front();
    world.to_producer.pop_front();
    if (message.kind == Message::kHello) {
      world.hello = message.hello;
      world.sends.Clear();
      for (Tensor& tensor : world.tensors) {
        if (!tensor.staged || tensor.form != Form::kAlone || !tensor.out.data) continue;
        tensor.form = Form::kAnnounced;
        tensor.out.entry = true;
      }
    } else if (message.hello == world.hello && world.sends.Add(kKey, message.room)) {
      bool out = false;
      for (Tensor& tensor : world.tensors) {
        if (!tensor.staged || tensor.form != Form::kWhole || !tensor.out.entry || fault_.hastes) continue;
        tensor.agreement = message.hello;
        out = true;
      }
      if (!out) world.to_consumer.push_back({Message::kAgreed, message.hello, 0});
    }
  }

  // The consumer has taken a part: of what went alone, all of it.
  void Taken(World& world, Tensor& tensor, bool Parts::*part) {
    tensor.out.*part = false;
    if (tensor.described && part == &Parts::data) tensor.out.entry = false;
    if (!tensor.agreement.has_value() || tensor.out.entry) return;
    const uint64_t hello = *tensor.agreement;
    tensor.agreement.reset();
    for (const Tensor& each : world.tensors)
      if (each.agreement == hello) return;
    world.to_consumer.push_back({Message::kAgreed, hello, 0});
  }

  // --- The consumer ---

  void SayHello(World& world) {
    ++world.hellos;
    world.asks.Doubt(2);
    for (Tensor& tensor : world.tensors)
      if (tensor.begun && !tensor.done && tensor.entry == Tensor::kNone) Await(world, tensor);
    world.to_producer.push_back({Message::kHello, 2, 0});
  }

  void HearConsumer(World& world) {
    world.asks.Agreed(kKey, world.to_consumer.front().hello);
    world.to_consumer.pop_front();
  }

  void Begin(World& world, Tensor& tensor) {
    tensor.begun = true;
    if (tensor.parked) return EntryCame(world, tensor);
    const AloneAsks::Known known = world.asks.Of(kKey);
    if (!known.agreed) tensor.entry = Tensor::kAwaited;
    tensor.flush = known.room > 0;
  }

  void Flush(World& world, Tensor& tensor) {
    tensor.flush = false;
    if (tensor.wait.Begin(world.asks.Of(kKey).room)) tensor.asked = true;
  }

  void Await(World& world, Tensor& tensor) {
    if (tensor.entry != Tensor::kNone) return;
    if (tensor.parked) return EntryCame(world, tensor);
    tensor.entry = Tensor::kAwaited;
  }

  void BundleComes(World& world, Tensor& tensor) {
    Taken(world, tensor, &Parts::entry);
    if (!tensor.begun || tensor.entry == Tensor::kCame) {
      tensor.parked = true;
      return;
    }
    EntryCame(world, tensor);
  }

  void EntryCame(World& world, Tensor& tensor) {
    tensor.entry = Tensor::kCame;
    if (tensor.form == Form::kWhole) return Finish(tensor);
    Do(world, tensor, tensor.wait.Announced(tensor.kind->bytes));
  }

  void DataComes(World& world, Tensor& tensor) {
    tensor.asked = false;
    if (tensor.wait.asked() < tensor.kind->bytes) {
      return Do(world, tensor, tensor.wait.TooShort(fault_.gives_up ? 0 : world.asks.Of(kKey).room));
    }
    Taken(world, tensor, &Parts::data);
    if (tensor.described) {
      if (fault_.believes) world.asks.Agreed(kKey, world.asks.hello());
      return Finish(tensor);
    }
    Do(world, tensor, tensor.wait.CameBare());
  }

  void Do(World& world, Tensor& tensor, AloneWait::Do what) {
    switch (what) {
      case AloneWait::Do::kNothing:
        return;
      case AloneWait::Do::kAsk:
        tensor.asked = true;
        return;
      case AloneWait::Do::kAwait:
        return Await(world, tensor);
      case AloneWait::Do::kGrpc:
        std::puts("a producer that is right is not believed");
        std::exit(2);
      case AloneWait::Do::kFinish:
        Finish(tensor);
        if (!tensor.kind->plain) return;
        if (const size_t room = world.asks.Announced(kKey, tensor.kind->bytes)) {
          if (!fault_.forgets) AskAlone(world);
          world.to_producer.push_back({Message::kAlone, world.asks.hello(), room});
        }
    }
  }

  // What was asked for before the key was known may now come alone, too.
  static void AskAlone(World& world) {
    for (Tensor& tensor : world.tensors)
      if (tensor.begun && !tensor.done && !tensor.wait.started()) tensor.flush = true;
  }

  static void Finish(Tensor& tensor) {
    tensor.done = true;
    tensor.asked = tensor.flush = false;
  }

  const Fault fault_;
  const bool others_;
};

}  // namespace

int main(int count, char** arguments) {
  Fault fault;
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    for (auto [each, is] : {std::pair("believes", &fault.believes), {"hides", &fault.hides}, {"gives_up", &fault.gives_up}, {"hastes", &fault.hastes},
                            {"forgets", &fault.forgets}})
      *is |= name == each;
  }
  size_t states = 0, stuck = 0, unseen = 0;
  std::string shown;
  for (bool others : {false, true}) {
    for (const Kind& first : kKinds) {
      for (const Kind* second = &first; second != std::end(kKinds); ++second) {
        for (const Kind* third = second; third != std::end(kKinds); ++third) {
          Model model(fault, others);
          model.Try({&first, second, third});
          states += model.states;
          stuck += model.stuck;
          unseen += model.unseen;
          if (shown.empty()) shown = model.shown;
        }
      }
    }
  }
  std::printf("{\"states\": %zu, \"stuck\": %zu, \"unseen\": %zu}\n%s\n", states, stuck, unseen, shown.c_str());
}
