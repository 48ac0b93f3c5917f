"""Check whether the file of a photo declares that a generator made it.

The check costs a search in bytes that were read anyway, and is certain where a model can only
guess. Metadata is easily removed, so its absence proves nothing; its statements are believed.
"""

from market.photos.containers import Container

# IPTC's digital source types of pictures that a trained model made, or had a part in.
GENERATED_SOURCES = (b"trainedalgorithmicmedia", b"compositewithtrainedalgorithmicmedia")
CAMERA_SOURCES = (b"digitalcapture", b"computationalcapture")

# Texts of PNG files in which Stable Diffusion's programs, ComfyUI and InvokeAI keep the prompt.
PROMPT_KEYS = frozenset(
    (
        *("parameters", "prompt", "workflow", "dream", "sd-metadata", "generation_data"),
        *("invokeai_metadata", "invokeai_graph"),
    )
)
PROMPT_WORDS = (b"steps: ", b"sampler: ")

# Names that generators write as Software or CreatorTool, each too specific to be a person's name.
GENERATORS = (
    *(b"midjourney", b"dall-e", b"dall\xc2\xb7e", b"openai", b"chatgpt", b"gpt-4o", b"gpt-image"),
    *(b"stable diffusion", b"stable-diffusion", b"stability ai", b"dreamstudio", b"automatic1111"),
    *(b"comfyui", b"invokeai", b"novelai", b"fooocus", b"swarmui", b"diffusers", b"draw things"),
    *(b"adobe firefly", b"made with google ai", b"google imagen", b"leonardo.ai", b"ideogram"),
    *(b"black forest labs", b"flux.1", b"bing image creator", b"nightcafe", b"craiyon"),
    *(b"runwayml", b"grok imagine", b"xai image", b"playground ai", b"seedream", b"qwen-image"),
)


def is_declared_generated(container: Container) -> bool:
    """Return whether a file declares that a generator made the picture, or a part of it.

    A C2PA manifest also counts, unless it declares a camera: most tools that write one are
    generators, and cameras that write one declare `digitalCapture`.
    """
    # Without its zeros, UTF-16 text reads like ASCII.
    metadata = container.metadata.replace(b"\0", b"").lower()
    if any(source in metadata for source in GENERATED_SOURCES):
        return True
    if container.has_manifest and not any(source in metadata for source in CAMERA_SOURCES):
        return True
    if container.keys & PROMPT_KEYS or all(word in metadata for word in PROMPT_WORDS):
        return True
    return any(name in metadata for name in GENERATORS)
