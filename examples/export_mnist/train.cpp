// Trains MNIST with a step that Python exported. There is no Python in this program.
//
//   train FOLDER DATA [--device cpu|cuda] [--epochs N] [--seed N] [--save FILE] [--resume FILE] [--losses FILE]
//
// The device is that which the step was exported for.
// FOLDER has what export_steps.py wrote, DATA the four IDX files of MNIST. Each epoch prints the mean loss and the accuracy
// on the test images. --save writes the state after each epoch, and the number of epochs in a file
// beside it; --resume goes on from there. --losses writes the bits of every loss.
#include <cstdio>
#include <iostream>
#include <numeric>
#include <random>

#include "tvmfun/cuda.hpp"
#include "tvmfun/safetensors.hpp"
#include "tvmfun/step.hpp"

namespace {

constexpr std::size_t pixels = 28 * 28;

struct Data {
  std::vector<unsigned char> images, labels;

  std::size_t size() const { return labels.size(); }
};

std::vector<unsigned char> read_idx(const std::string& path, std::size_t axes, std::size_t item) {
  std::vector<unsigned char> content = tvmfun::detail::read_file(path);
  std::size_t header = 4 * (1 + axes);
  auto number = [&](std::size_t i) {
    return std::size_t{content[i]} << 24 | std::size_t{content[i + 1]} << 16 | std::size_t{content[i + 2]} << 8 |
           content[i + 3];
  };
  if (content.size() < header || number(0) != 0x800 + axes || content.size() != header + number(4) * item) {
    throw std::runtime_error(path + " is not an IDX file of MNIST");
  }
  return {content.begin() + static_cast<std::ptrdiff_t>(header), content.end()};
}

Data read_data(const std::string& folder, const std::string& part) {
  Data data{read_idx(folder + "/" + part + "-images-idx3-ubyte", 3, pixels),
            read_idx(folder + "/" + part + "-labels-idx1-ubyte", 1, 1)};
  if (data.images.size() != data.size() * pixels) {
    throw std::runtime_error(folder + " has another number of images than labels");
  }
  return data;
}

// Normalized as in mnist_data.py.
void copy_images(const Data& data, const std::size_t* order, std::size_t count, std::vector<float>& images) {
  static const std::vector<float> values = [] {
    std::vector<float> table(256);
    for (int i = 0; i < 256; i++) {
      table[static_cast<std::size_t>(i)] = static_cast<float>((i / 255.0 - 0.1307) / 0.3081);
    }
    return table;
  }();
  for (std::size_t i = 0; i < count; i++) {
    for (std::size_t j = 0; j < pixels; j++) {
      images[i * pixels + j] = values[data.images[order[i] * pixels + j]];
    }
  }
}

// The standard says which numbers the generator yields, but not what std::shuffle does with them.
std::vector<std::size_t> shuffled(std::size_t size, unsigned seed) {
  std::vector<std::size_t> order(size);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::mt19937 generator(seed);
  for (std::size_t i = size; i-- > 1;) {
    std::swap(order[i], order[generator() % (i + 1)]);
  }
  return order;
}

// A step on the CPU.
struct Cpu {
  tvmfun::Call call;

  explicit Cpu(const std::string& path) : call(tvmfun::Step(path)) {}

  std::vector<tvmfun::Array> get(const std::string& prefix) const { return call.arguments(prefix); }

  void set(const std::string& prefix, const std::vector<tvmfun::Array>& arrays) {
    for (const tvmfun::Array& array : arrays) {
      tvmfun::Array own = call.argument(prefix + array.name());
      if (own.data() != array.data()) {
        std::memcpy(own.data(), array.data(), own.nbytes());
      }
    }
  }

  template <class T>
  void set(const std::string& name, const std::vector<T>& elements) {
    std::copy(elements.begin(), elements.end(), call.argument(name).as<T>().begin());
  }

  template <class T>
  std::vector<T> result(const std::string& name) const {
    auto elements = call.result(name).as<T>();
    return {elements.begin(), elements.end()};
  }
};

// A step on a GPU, with copies of what get() returned last.
struct Cuda {
  tvmfun::CudaCall call;
  tvmfun::HostCopies copies = call.download("nothing");

  explicit Cuda(const std::string& path) : call(tvmfun::CudaStep(path)) {}

  const std::vector<tvmfun::Array>& get(const std::string& prefix) {
    copies = call.download(prefix);
    return copies.arrays();
  }

  void set(const std::string& prefix, const std::vector<tvmfun::Array>& arrays) { call.upload(prefix, arrays); }

  template <class T>
  void set(const std::string& name, const std::vector<T>& elements) {
    call.argument(name).upload(elements);
  }

  template <class T>
  std::vector<T> result(const std::string& name) const {
    return call.result(name).download<T>();
  }
};

template <class Device>
double accuracy(Device& predict, Device& training, const Data& data) {
  predict.set("model", training.get("state.model"));
  std::vector<std::size_t> order(data.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<float> images(predict.call.argument("images").nbytes() / sizeof(float));
  std::size_t batch = images.size() / pixels, correct = 0;
  for (std::size_t first = 0; first < data.size(); first += batch) {
    std::size_t count = std::min(batch, data.size() - first);
    copy_images(data, &order[first], count, images);
    predict.set("images", images);
    predict.call.run();
    auto digits = predict.template result<std::int32_t>("result");
    for (std::size_t i = 0; i < count; i++) {
      correct += digits[i] == data.labels[first + i];
    }
  }
  return static_cast<double>(correct) / static_cast<double>(data.size());
}

struct Options {
  std::string folder, data, device = "cpu", save, resume, losses;
  int epochs = 1;
  unsigned seed = 1;
};

Options parse(int count, char** words) {
  Options options;
  std::vector<std::string> positional;
  for (int i = 1; i < count; i++) {
    std::string word = words[i];
    if (word.compare(0, 2, "--") != 0) {
      positional.push_back(word);
      continue;
    }
    if (++i == count) {
      throw std::runtime_error(word + " needs a value");
    }
    if (word == "--epochs") {
      options.epochs = std::stoi(words[i]);
    } else if (word == "--device") {
      options.device = words[i];
    } else if (word == "--seed") {
      options.seed = static_cast<unsigned>(std::stoul(words[i]));
    } else if (word == "--save") {
      options.save = words[i];
    } else if (word == "--resume") {
      options.resume = words[i];
    } else if (word == "--losses") {
      options.losses = words[i];
    } else {
      throw std::runtime_error("there is no option " + word);
    }
  }
  if (positional.size() != 2 || (options.device != "cpu" && options.device != "cuda")) {
    throw std::runtime_error("usage: train FOLDER DATA [--device cpu|cuda] [--epochs N] [--save FILE] [--resume FILE]");
  }
  options.folder = positional[0];
  options.data = positional[1];
  return options;
}

int epochs_of(const std::string& path) {
  int epochs = 0;
  if (!(std::ifstream(path + ".epochs") >> epochs)) {
    throw std::runtime_error(path + ".epochs cannot be read");
  }
  return epochs;
}

template <class Device>
void train(const Options& options) {
  Data training = read_data(options.data, "train"), test = read_data(options.data, "t10k");
  Device step(options.folder + "/step.so"), predict(options.folder + "/predict.so");
  bool is_new = options.resume.empty();
  const auto& state = step.get("state");
  tvmfun::load_safetensors(is_new ? options.folder + "/start.safetensors" : options.resume, state);
  step.set("state", state);

  std::FILE* losses = options.losses.empty() ? nullptr : std::fopen(options.losses.c_str(), "wb");
  std::vector<std::int32_t> labels(step.call.argument("labels").nbytes() / sizeof(std::int32_t));
  std::vector<float> images(step.call.argument("images").nbytes() / sizeof(float));
  std::size_t batch = labels.size(), steps = training.size() / batch;
  for (int epoch = is_new ? 0 : epochs_of(options.resume); epoch < options.epochs; epoch++) {
    std::vector<std::size_t> order = shuffled(training.size(), options.seed + static_cast<unsigned>(epoch));
    double total = 0;
    for (std::size_t i = 0; i < steps; i++) {
      const std::size_t* chosen = &order[i * batch];
      copy_images(training, chosen, batch, images);
      for (std::size_t j = 0; j < batch; j++) {
        labels[j] = training.labels[chosen[j]];
      }
      step.set("images", images);
      step.set("labels", labels);
      step.call.run();
      float loss = step.template result<float>("[1]")[0];
      step.call.feed("[0]", "state");
      total += loss;
      if (losses) {
        std::fwrite(&loss, sizeof loss, 1, losses);
      }
    }
    std::printf("epoch %2d  loss %.4f  test accuracy %.2f%%\n", epoch + 1, total / static_cast<double>(steps),
                100 * accuracy(predict, step, test));
    std::fflush(stdout);
    if (!options.save.empty()) {
      tvmfun::save_safetensors(options.save, step.get("state"));
      std::ofstream(options.save + ".epochs") << epoch + 1 << "\n";
    }
  }
  if (losses) {
    std::fclose(losses);
  }
}

}  // namespace

int main(int count, char** words) {
  try {
    Options options = parse(count, words);
    options.device == "cuda" ? train<Cuda>(options) : train<Cpu>(options);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
